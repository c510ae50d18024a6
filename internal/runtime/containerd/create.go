// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// cleanUp is the time limit for removing the remains of a failed call; after that the keeper removes them.
const cleanUp = 10 * time.Second

// createContainer creates everything of a pod that needs no process and does not depend on its network. On error
// nothing of it remains.
func (r *Runtime) createContainer(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) (*container, error) {
	return r.createFor(ctx, s, info, false)
}

// createFor is createContainer, also for a prepared pod.
func (r *Runtime) createFor(ctx context.Context, s *v1alpha1.WangellService, info imageInfo, prepared bool) (*container,
	error) {
	k := runtime.KeyOf(s)
	c := &container{
		id: newPodID(k), service: k, hash: v1alpha1.Hash(&s.Spec), image: info,
		stopSignal: cmp.Or(s.Spec.StopSignal, info.config.StopSignal),
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
	spec, mounts, err := r.createRecord(ctx, s, info, &record,
		home{pod: c.id, cgroup: r.cfg.containerCgroup(c.id, s.Name, alone(s)), prepared: prepared})
	if err != nil {
		return err
	}
	c.rootfs = mountsToProto(mounts)
	c.uid, c.gid = int(spec.Process.User.UID), int(spec.Process.User.GID)
	return nil
}

// home is where a container is: the ID of its pod, and the path of its cgroup. If the pod is prepared, the container's
// first process waits.
type home struct {
	pod, cgroup string
	prepared    bool
}

// createRecord creates the snapshot and the record of a container whose ID and labels are set.
func (r *Runtime) createRecord(ctx context.Context, s *v1alpha1.WangellService, info imageInfo,
	record *containers.Container, at home) (*specs.Spec, []mount.Mount, error) {
	// Not cancelled with the caller: whatever containerd made after that would never be removed.
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

func mountsToProto(list []mount.Mount) []*types.Mount {
	var out []*types.Mount
	for _, m := range list {
		out = append(out, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return out
}
