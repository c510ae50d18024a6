// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// createContainer creates the parts of a pod that need neither a process nor its network. On error nothing remains.
func (r *Runtime) createContainer(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) (*container, error) {
	return r.createFor(ctx, s, info, false)
}

// createFor is createContainer for both prepared and other pods.
func (r *Runtime) createFor(ctx context.Context, s *v1alpha1.WangellService, info imageInfo, prepared bool) (*container,
	error) {
	k := v1alpha1.KeyOf(s)
	c := &container{
		id: newPodID(k), service: k, hash: v1alpha1.Hash(&s.Spec), image: info,
		stopSignal: cmp.Or(s.Spec.StopSignal, info.config.StopSignal),
	}
	if s.Spec.KeepsImageVolumes() {
		var err error
		if c.kept, err = r.volumesOfImages(ctx, s, info); err != nil {
			return nil, err
		}
	}
	if err := r.fillContainer(ctx, s, info, c, prepared); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		if left := r.removePod(clean, c.id, ""); left != nil {
			r.remember(c.id)
		}
		return nil, fmt.Errorf("create container: %w", explainFull(err))
	}
	return c, nil
}

// fillContainer creates the folder, snapshot and record of a container.
func (r *Runtime) fillContainer(ctx context.Context, s *v1alpha1.WangellService, info imageInfo, c *container,
	prepared bool) error {
	if err := r.makePodDir(s, c.id); err != nil {
		return err
	}
	record := containers.Container{ID: c.id, Labels: map[string]string{
		labelInstance: r.cfg.Instance, labelService: string(c.service), labelSpecHash: c.hash,
		labelImageDigest: info.digest.String(),
	}}
	if c.stopSignal != "" {
		record.Labels[labelStopSignal] = c.stopSignal
	}
	if prepared {
		record.Labels[labelPrepared] = "true"
	}
	if len(c.kept) > 0 {
		record.Labels[labelKeeps] = "true"
	}
	spec, mounts, err := r.createRecord(ctx, s, info, &record,
		home{pod: c.id, cgroup: r.cfg.containerCgroup(c.id, s.Name, alone(s)), prepared: prepared, kept: c.kept})
	if err != nil {
		return err
	}
	c.rootfs = mountsToProto(mounts)
	c.uid, c.gid = int(spec.Process.User.UID), int(spec.Process.User.GID)
	return nil
}

// createRecord creates the snapshot and the record of a container whose ID and labels are set.
func (r *Runtime) createRecord(ctx context.Context, s *v1alpha1.WangellService, info imageInfo,
	record *containers.Container, at home) (*specs.Spec, []mount.Mount, error) {
	// Not cancelled with the caller: nobody would remove what containerd still makes after that.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	// The label protects the snapshot from the garbage collector until the container refers to it. It is cheaper than a
	// lease.
	labels := maps.Clone(record.Labels)
	labels["containerd.io/gc.root"] = time.Now().UTC().Format(time.RFC3339)
	mounts, err := r.client.SnapshotService(info.snapshotter).Prepare(ctx, record.ID, info.chain,
		snapshots.WithLabels(labels))
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot: %w", native(err))
	}
	options, err := typeurl.MarshalAny(&runcoptions.Options{Root: r.cfg.runcRoot()})
	if err != nil {
		return nil, nil, err
	}
	record.Image, record.Snapshotter, record.SnapshotKey = info.name, info.snapshotter, record.ID
	record.Runtime = containers.RuntimeInfo{Name: runtimeName, Options: options}
	spec, err := r.generateSpec(ctx, s, info, record, at)
	if err != nil {
		return nil, nil, err
	}
	if record.Spec, err = typeurl.MarshalAny(spec); err != nil {
		return nil, nil, err
	}
	_, err = r.client.ContainerService().Create(ctx, *record)
	return spec, mounts, native(err)
}

// ensureMembers ensures that the images of the containers beside the main one are on the machine.
func (r *Runtime) ensureMembers(ctx context.Context, s *v1alpha1.WangellService, progress runtime.Progress) error {
	for c := range s.Spec.Others {
		if _, err := r.images.ensure(ctx, s.Alone(c), progress); err != nil {
			return fmt.Errorf("container %q: %w", c.Name, err)
		}
	}
	return nil
}

// createMembers creates the records and snapshots of the containers beside the main one. On error the caller cleans up.
func (r *Runtime) createMembers(ctx context.Context, s *v1alpha1.WangellService, c *container) error {
	for i := range s.Spec.InitContainers {
		kind := kindInit
		if s.Spec.InitContainers[i].IsSidecar() {
			kind = kindSidecar
		}
		if err := r.createMember(ctx, s, &s.Spec.InitContainers[i], c, kind); err != nil {
			return err
		}
	}
	for i := range s.Spec.Containers {
		if err := r.createMember(ctx, s, &s.Spec.Containers[i], c, kindContainer); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runtime) createMember(ctx context.Context, s *v1alpha1.WangellService, of *v1alpha1.Container, c *container,
	kind string) error {
	own := s.Alone(of)
	info, err := r.images.ensure(ctx, own, nil)
	if err != nil {
		return fmt.Errorf("container %q: %w", of.Name, err)
	}
	pod := c.id
	m := newMember(pod, v1alpha1.KeyOf(s), of.Name, kind)
	r.note(m)
	record := containers.Container{ID: m.id, Labels: m.labels(r.cfg.Instance)}
	if info.config.StopSignal != "" {
		record.Labels[labelStopSignal] = info.config.StopSignal
	}
	_, _, err = r.createRecord(ctx, own, info, &record, home{pod: pod,
		cgroup: r.cfg.containerCgroup(pod, m.name, false), container: m.name, kept: c.kept})
	if err != nil {
		return fmt.Errorf("create container %q: %w", of.Name, explainFull(err))
	}
	return nil
}
