// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/runtime"
)

// volumeMounts returns the mounts of a pod's volumes. makeVolumes checks that their sources exist.
func (r *Runtime) volumeMounts(s *v1alpha1.WangellService, id string) ([]specs.Mount, error) {
	spec := &s.Spec
	volumes := map[string]v1alpha1.Volume{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = v
	}
	var mounts []specs.Mount
	for _, m := range spec.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok {
			return nil, fmt.Errorf("volumeMounts: volume %q is not in spec.volumes", m.Name)
		}
		if m.SubPath != "" && !v.HasFiles() || m.SubPathExpr != "" {
			return nil, fmt.Errorf("volumeMounts: %q: subPath is not supported on one machine: mount the whole volume", m.Name)
		}
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		mount := specs.Mount{Destination: m.MountPath, Type: "bind", Options: []string{"rbind", "rprivate", access}}
		switch {
		case v.Persistent != nil:
			mount.Source = r.volumes.Path(volume.IDOf(s, &v))
		case v.HostPath != nil:
			mount.Source = v.HostPath.Path
		case v.EmptyDir != nil:
			mount.Source = r.emptyDir(id, &v)
		case v.HasFiles():
			mount.Source = filepath.Join(r.filesDir(id), v.Name, m.SubPath)
			mount.Options = []string{"rbind", "rprivate", "ro", "nosuid", "nodev"}
		default:
			return nil, fmt.Errorf("volume %q: use persistent, hostPath, emptyDir, secret or configMap; other volumes are "+
				"not supported on one machine", v.Name)
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}

// scratchMounts returns the in-memory folders of a container with a read-only layer, with the image's content. They
// are mounted before the volumes, which may lie in them.
func scratchMounts(spec *v1alpha1.WangellServiceSpec) (mounts []specs.Mount) {
	if !spec.ReadOnlyLayer() {
		return nil
	}
	size := spec.ScratchSize()
	for _, f := range v1alpha1.ScratchFolders {
		own := func(m corev1.VolumeMount) bool { return filepath.Clean(m.MountPath) == f.Path }
		if slices.ContainsFunc(spec.VolumeMounts, own) {
			continue
		}
		mounts = append(mounts, specs.Mount{Destination: f.Path, Type: "tmpfs", Source: "tmpfs", Options: []string{
			"nosuid", "nodev", fmt.Sprintf("mode=%o", f.Mode), fmt.Sprintf("size=%d", size.Value()), "tmpcopyup",
		}})
	}
	return mounts
}

// emptyDir is the folder of an emptyDir volume of a pod: on disk, or the mount point of a file system in memory.
func (r *Runtime) emptyDir(id string, v *v1alpha1.Volume) string {
	if v.EmptyDir.Medium == corev1.StorageMediumMemory {
		return filepath.Join(r.cfg.podDir(id), "volumes", v.Name)
	}
	return filepath.Join(r.cfg.emptyDirs(), id, v.Name)
}

// makeEmptyDir makes the folder of an emptyDir volume, in which any user may write, as in Kubernetes.
func (r *Runtime) makeEmptyDir(id string, v *v1alpha1.Volume) error {
	dir := r.emptyDir(id, v)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if v.EmptyDir.Medium != corev1.StorageMediumMemory {
		return os.Chmod(dir, 0o777) // Chmod, because of the umask
	}
	options := "mode=1777"
	if limit := v.EmptyDir.SizeLimit; limit != nil {
		options += fmt.Sprintf(",size=%d", limit.Value())
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount a file system in memory at %s: %w", dir, err)
	}
	return nil
}

// filesDir is the folder of a pod with its volumes of Secrets and ConfigMaps. Only root can enter it, while the files
// have the modes that the container sees. It is in the run folder, which is in memory on most machines.
func (r *Runtime) filesDir(id string) string { return filepath.Join(r.cfg.podDir(id), "files") }

// makeFiles writes the files of a volume.
func (r *Runtime) makeFiles(s *v1alpha1.WangellService, v *v1alpha1.Volume, id string) error {
	if err := os.MkdirAll(r.filesDir(id), 0o700); err != nil {
		return err
	}
	root := filepath.Join(r.filesDir(id), v.Name)
	if err := makeFolder(root); err != nil {
		return err
	}
	for _, f := range s.Spec.Files(v) {
		file := filepath.Join(root, f.Path)
		if err := makeFolders(root, filepath.Dir(file)); err != nil {
			return err
		}
		if err := os.WriteFile(file, f.Data, 0o600); err != nil {
			return err
		}
		if err := os.Chmod(file, fs.FileMode(f.Mode)); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

// makeFolders makes the folders from root to dir, and lets every user of the container enter them.
func makeFolders(root, dir string) error {
	if dir == root {
		return nil
	}
	if err := makeFolders(root, filepath.Dir(dir)); err != nil {
		return err
	}
	return makeFolder(dir)
}

func makeFolder(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// makeVolumes creates the pod's empty folders, writes its files, mounts its persistent volumes and checks the paths of
// the host, just before the process is started.
func (r *Runtime) makeVolumes(ctx context.Context, s *v1alpha1.WangellService, c *container) error {
	for _, v := range s.Spec.Volumes {
		var err error
		switch {
		case v.Persistent != nil:
			if err := r.volumes.Hold(ctx, c.id, volume.Want{
				ID: volume.IDOf(s, &v), SizeBytes: v.Persistent.Bytes(), Service: string(c.service), UID: c.uid, GID: c.gid,
			}); err != nil {
				return err
			}
		case v.HostPath != nil:
			err = checkHostPath(v.HostPath)
		case v.HasFiles():
			err = r.makeFiles(s, &v, c.id)
		case v.EmptyDir != nil:
			err = r.makeEmptyDir(c.id, &v)
		}
		if err != nil {
			return fmt.Errorf("volume %q: %w", v.Name, err)
		}
	}
	return r.holdKept(ctx, c)
}

// checkHostPath checks a path of the host, and creates it for the types that ask for it, following
// https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types.
func checkHostPath(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	info, err := os.Stat(h.Path)
	if errors.Is(err, fs.ErrNotExist) {
		switch kind {
		case corev1.HostPathDirectoryOrCreate:
			return os.MkdirAll(h.Path, 0o755)
		case corev1.HostPathFileOrCreate:
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_RDONLY, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
		return fmt.Errorf("hostPath %s does not exist: create it, or set type: DirectoryOrCreate", h.Path)
	}
	if err != nil {
		return fmt.Errorf("hostPath: %w", err)
	}
	mode := info.Mode()
	is := map[corev1.HostPathType]bool{
		corev1.HostPathUnset:             true,
		corev1.HostPathDirectoryOrCreate: mode.IsDir(),
		corev1.HostPathDirectory:         mode.IsDir(),
		corev1.HostPathFileOrCreate:      mode.IsRegular(),
		corev1.HostPathFile:              mode.IsRegular(),
		corev1.HostPathSocket:            mode&fs.ModeSocket != 0,
		corev1.HostPathCharDev:           mode&fs.ModeCharDevice != 0,
		corev1.HostPathBlockDev:          mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0,
	}
	if fits, known := is[kind]; !known {
		return fmt.Errorf("hostPath %s: type %q is unknown", h.Path, kind)
	} else if !fits {
		return fmt.Errorf("hostPath %s is not a %s: correct the path or the type", h.Path,
			strings.TrimSuffix(string(kind), "OrCreate"))
	}
	return nil
}

// aloneEvery is the pause between two checks whether the earlier pods are gone, before another one starts.
const aloneEvery = 20 * time.Millisecond

// awaitAlone waits until the service's pods are gone without remains if its strategy is Recreate, for example because
// two at once could write to one volume; if the new pod keeps volumes of its images, until those are that do as well.
// It also removes the remains of failed starts, because the keeper waits for starts to end.
func (r *Runtime) awaitAlone(ctx context.Context, s *v1alpha1.WangellService, keeps bool) error {
	for {
		id, remains := r.rivalOf(s, keeps)
		if id == "" {
			return nil
		}
		var err error
		if remains {
			if err = r.purge(ctx, id); err == nil {
				r.mu.Lock()
				delete(r.garbage, id)
				r.mu.Unlock()
				continue
			}
		}
		select {
		case <-ctx.Done():
			return r.notAlone(s, id, errors.Join(ctx.Err(), err))
		case <-time.After(aloneEvery):
		}
	}
}

// rivalOf returns the ID of a pod beside which no other one of the service may run, empty if there is none, and whether
// only remains of a failed start are left of it. keeps is whether that other one keeps volumes of its images.
func (r *Runtime) rivalOf(s *v1alpha1.WangellService, keeps bool) (id string, remains bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rivalLocked(s, keeps)
}

func (r *Runtime) rivalLocked(s *v1alpha1.WangellService, keeps bool) (id string, remains bool) {
	k, single := v1alpha1.KeyOf(s), s.Spec.Strategy() == v1alpha1.UpdateRecreate
	for id, p := range r.pods {
		if p.Service == k && (single || keeps && p.keeps) {
			return id, r.garbage[id]
		}
	}
	return "", false
}

// add registers a pod, unless the pod must not run beside another one.
func (r *Runtime) add(s *v1alpha1.WangellService, p *pod) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, _ := r.rivalLocked(s, p.keeps); id != "" {
		return r.notAlone(s, id, runtime.ErrUnavailable)
	}
	r.pods[p.ID] = p
	return nil
}

func (r *Runtime) notAlone(s *v1alpha1.WangellService, id string, err error) error {
	volume := s.Spec.SharedVolume()
	switch {
	case volume != "":
		return fmt.Errorf("pod %s may still write volume %q: %w", id, volume, err)
	case s.Spec.Strategy() == v1alpha1.UpdateRecreate:
		return fmt.Errorf("pod %s may still run, and updateStrategy is Recreate: %w", id, err)
	}
	return fmt.Errorf("pod %s may still write the volumes of the image: %w", id, err)
}
