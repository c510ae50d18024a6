// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	continuity "github.com/containerd/continuity/fs"
	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/runtime"
)

var _ runtime.ImageVolumeKeeper = (*Runtime)(nil)

// imageVolume is a folder that an image declares as a volume, and for which the manifest mounts none.
type imageVolume struct {
	// container is the name of the container beside the main one that has it; empty for the main one.
	container, path string
	// snapshotter has the layer of the container.
	snapshotter string
	id          volume.ID
}

// volumesOfImage returns the volumes that the image of a container declares. s describes that container as the main
// one; container is its name if it is another one.
func volumesOfImage(s *v1alpha1.WangellService, container string, info imageInfo) (list []imageVolume) {
	main := s.Spec.Main(container)
	for _, path := range main.UnmountedVolumes(info.config.Volumes) {
		list = append(list, imageVolume{container: container, path: path, snapshotter: info.snapshotter, id: volume.ID{
			Namespace: cmp.Or(s.Namespace, v1alpha1.DefaultNamespace),
			Name:      v1alpha1.ImageVolumeName(s.Name, container, path),
		}})
	}
	return list
}

// volumesOfImages returns the volumes that the images of a service declare: of the main container, whose image info is,
// and of those that run beside it.
func (r *Runtime) volumesOfImages(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) ([]imageVolume,
	error) {
	list := volumesOfImage(s, "", info)
	for c := range s.Spec.Others {
		if s.Spec.IsInit(c.Name) {
			continue
		}
		own := s.Alone(c)
		own.Spec.ImagePullPolicy = corev1.PullNever // ensureMembers has pulled it
		info, err := r.images.ensure(ctx, own, nil)
		if err != nil {
			return nil, fmt.Errorf("container %q: %w", c.Name, err)
		}
		list = append(list, volumesOfImage(own, c.Name, info)...)
	}
	return list, nil
}

// ImageVolumes implements runtime.ImageVolumeKeeper.
func (r *Runtime) ImageVolumes(ctx context.Context, s *v1alpha1.WangellService) (v runtime.ImageVolumes, err error) {
	present := *s
	present.Spec.ImagePullPolicy = corev1.PullNever
	info, err := r.images.ensure(ctx, &present, nil)
	if err != nil {
		return v, err
	}
	list, err := r.volumesOfImages(ctx, s, info)
	if err != nil {
		return v, fmt.Errorf("service %s: %w", v1alpha1.KeyOf(s), err)
	}
	into := &v.Lost
	if s.Spec.KeepsImageVolumes() {
		into = &v.Kept
	}
	for _, l := range list {
		*into = append(*into, l.path)
	}
	return v, nil
}

// keptMounts returns the mounts of the volumes of images of one container.
func (r *Runtime) keptMounts(kept []imageVolume, container string) (mounts []specs.Mount) {
	for _, v := range kept {
		if v.container == container {
			mounts = append(mounts, specs.Mount{Destination: v.path, Type: "bind", Source: r.volumes.Path(v.id),
				Options: []string{"rbind", "rprivate", "rw"}})
		}
	}
	return mounts
}

// holdKept makes the volumes of images that a pod keeps, with the files of the images, and mounts them until the pod
// ends.
func (r *Runtime) holdKept(ctx context.Context, c *container) error {
	for _, v := range c.kept {
		want := volume.Want{ID: v.id, Service: string(c.service), Fill: func(dir string) error {
			layer := c.id
			if v.container != "" {
				layer = ContainerID(c.id, c.service, v.container)
			}
			mounts, err := r.client.SnapshotService(v.snapshotter).Mounts(ctx, layer)
			if err != nil {
				return native(err)
			}
			// In the pod's folder, whose removal unmounts it after a crash.
			root := filepath.Join(r.cfg.podDir(c.id), "image")
			if err := os.MkdirAll(root, 0o700); err != nil {
				return err
			}
			if err := mount.All(mounts, root); err != nil {
				return fmt.Errorf("mount the image: %w", err)
			}
			err = copyFolder(dir, root, v.path, c.uid, c.gid)
			return errors.Join(err, mount.UnmountAll(root, 0))
		}}
		if err := r.volumes.Hold(ctx, c.id, want); err != nil {
			return fmt.Errorf("the folder %s of the image, which is a volume: %w", v.path, err)
		}
	}
	return nil
}

// copyFolder makes the folder dir with the owner, the mode and the content of a folder of an image, whose root is
// mounted at root. If the image has no such folder, dir is empty and belongs to uid and gid.
func copyFolder(dir, root, path string, uid, gid int) error {
	from, err := continuity.RootPath(root, path) // a symbolic link does not lead out of the image
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	switch {
	case os.IsNotExist(err):
		return volume.MakeData(dir, uid, gid)
	case err != nil:
		return err
	case !info.IsDir():
		return errors.New("it is a file, and no folder: mount a file there, or write imageVolumes: Discard")
	}
	if err := continuity.CopyDir(dir, from); err != nil {
		return fmt.Errorf("copy the image's files: %w", err)
	}
	return nil
}
