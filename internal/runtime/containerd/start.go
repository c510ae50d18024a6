// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// cleanUp is how long removing the remains of a failed call may take before the keeper takes over.
const cleanUp = 10 * time.Second

// Start starts one pod of s, see runtime.Runtime. With the pull policy Always the registry is asked first.
func (r *Runtime) Start(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod, error) {
	r.keeper.begin()
	defer r.keeper.end()
	phase := func(p runtime.Phase, at monotime.Time) {
		if hooks.Phase != nil {
			hooks.Phase(p, at)
		}
	}
	info, err := r.images.ensure(ctx, s, nil)
	if err != nil {
		return runtime.Pod{}, err
	}
	phase(runtime.PhaseImage, monotime.Now())
	c := r.takeReady(ctx, s, info)
	if c == nil {
		if c, err = r.createContainer(ctx, s, info); errdefs.IsNotFound(err) {
			// Somebody removed the image since we looked.
			r.images.forget(s.Spec.Image)
			if info, err = r.images.ensure(ctx, s, nil); err == nil {
				c, err = r.createContainer(ctx, s, info)
			}
		}
		if err != nil {
			return runtime.Pod{}, fmt.Errorf("service %s: %w", runtime.KeyOf(s), err)
		}
	}
	warm := make(chan struct{})
	go warmCgroups(r.ownCgroup, warm)
	defer close(warm)
	p, err := r.launch(ctx, s, c, hooks.Network, phase)
	if err != nil {
		err = fmt.Errorf("service %s: start pod %s: %w", runtime.KeyOf(s), c.id, err)
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		if left := r.purge(clean, c.id); left != nil {
			r.remember(c.id)
			// The process at once: its clients hear of its end only as long as the pod is known, and that is till we return.
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPeriod)
			defer cancel()
			left = errors.Join(left, killCgroup(end, filepath.Join(r.cfg.cgroup(), c.id)))
			err = errors.Join(err, fmt.Errorf("remove its remains, tried again later: %w", left))
		}
		return runtime.Pod{}, err
	}
	return p, nil
}

// createContainer makes everything of a pod that costs no process and does not depend on its network. On error
// nothing of it remains.
func (r *Runtime) createContainer(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) (*container, error) {
	k := runtime.KeyOf(s)
	c := &container{
		id: newPodID(k), service: k, hash: v1alpha1.Hash(&s.Spec), image: info.digest, stopSignal: info.config.StopSignal,
	}
	if err := r.fillContainer(ctx, s, info, c); err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
		defer cancel()
		if left := r.removePod(clean, c.id, ""); left != nil {
			r.remember(c.id)
		}
		if diskFull(err) {
			return nil, fmt.Errorf("create container: no space left on device where containerd keeps containers: free some: %w", err)
		}
		return nil, fmt.Errorf("create container: %w", err)
	}
	return c, nil
}

func (r *Runtime) fillContainer(ctx context.Context, s *v1alpha1.WangellService, info imageInfo, c *container) error {
	if err := r.makePodDir(c.id); err != nil {
		return err
	}
	// Not cut off when the caller goes: what containerd still made after that, nobody would remove.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	// The label keeps the snapshot from the garbage collector until the container refers to it, cheaper than a lease.
	mounts, err := r.client.SnapshotService(snapshotter).Prepare(ctx, c.id, info.chain,
		snapshots.WithLabels(map[string]string{"containerd.io/gc.root": time.Now().UTC().Format(time.RFC3339), labelInstance: r.cfg.Instance}))
	if err != nil {
		return fmt.Errorf("snapshot: %w", native(err))
	}
	c.rootfs = mountsToProto(mounts)
	options, err := typeurl.MarshalAny(&runcoptions.Options{Root: r.runcRoot()})
	if err != nil {
		return err
	}
	record := containers.Container{
		ID: c.id, Image: info.name, Snapshotter: snapshotter, SnapshotKey: c.id,
		Runtime: containers.RuntimeInfo{Name: runtimeName, Options: options},
		Labels: map[string]string{
			labelInstance: r.cfg.Instance, labelService: string(c.service), labelSpecHash: c.hash,
		},
	}
	if c.stopSignal != "" {
		record.Labels[labelStopSignal] = c.stopSignal
	}
	spec, err := r.generateSpec(ctx, s, info, &record)
	if err != nil {
		return err
	}
	if record.Spec, err = typeurl.MarshalAny(spec); err != nil {
		return err
	}
	_, err = r.client.ContainerService().Create(ctx, record)
	return native(err)
}

func mountsToProto(list []mount.Mount) []*types.Mount {
	var out []*types.Mount
	for _, m := range list {
		out = append(out, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return out
}

// launch gives a container a network and starts its process. On error the caller removes what is there.
func (r *Runtime) launch(ctx context.Context, s *v1alpha1.WangellService, c *container, network func(runtime.Pod), phase func(runtime.Phase, monotime.Time)) (runtime.Pod, error) {
	n, err := r.nets.Take()
	if err != nil {
		return runtime.Pod{}, err
	}
	log := r.logFile(c.service)
	p := &pod{net: n, logBegin: fileSize(log), Pod: runtime.Pod{
		ID: c.id, Service: c.service, SpecHash: c.hash, Addr: n.Addr, Netns: n.Netns, HostDevice: n.HostDevice,
	}}
	// Known from here on, so that its exit is not missed and what fails is removed.
	r.mu.Lock()
	r.pods[c.id] = p
	r.mu.Unlock()
	if err := r.connectPodDir(c.service, c.id, n.Netns, n.Addr); err != nil {
		return runtime.Pod{}, err
	}
	if err := r.makeVolumes(&s.Spec, c.id); err != nil {
		return runtime.Pod{}, err
	}
	phase(runtime.PhaseSandbox, monotime.Now())
	if network != nil {
		network(p.Pod)
	}
	if err := makeLog(log); err != nil {
		return runtime.Pod{}, err
	}
	// The shim opens the file itself and writes to it until the process ends, whether we live or not. Once for each stream, by
	// two names: a file of one name, or a file:// URI, it would close for both when the first stream ends, and lose the last
	// words of the other (containerd, pkg/process/io.go: copyPipes).
	if err := finish(ctx, func(ctx context.Context) error {
		_, err := r.client.TaskService().Create(ctx, &tasks.CreateTaskRequest{
			ContainerID: c.id, Rootfs: c.rootfs, Stdout: log, Stderr: filepath.Dir(log) + "/./" + filepath.Base(log),
		})
		return native(err)
	}); err != nil {
		return runtime.Pod{}, explainStart(err)
	}
	phase(runtime.PhaseCreated, monotime.Now())
	started, err := r.startTask(ctx, c.id)
	if err != nil {
		return runtime.Pod{}, explainStart(err)
	}
	phase(runtime.PhaseStarted, started)
	r.mu.Lock()
	p.Started = started
	running := p.Pod
	r.mu.Unlock()
	r.tasks.Go(func() { r.await(p) })
	return running, nil
}

// errNoAnswer: a call that was given up has not come to its end in time.
var errNoAnswer = fmt.Errorf("containerd has not answered %v after the start was given up", cleanUp)

// finish makes a call of containerd that starts processes, and lets it come to its end when ctx ends meanwhile: of a
// call that is cut off, containerd forgets what the shim and runc are still to make. It fails if ctx has ended, and with
// errNoAnswer if the call takes cleanUp longer.
func finish(ctx context.Context, call func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	uncut, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		select {
		case <-uncut.Done():
		case <-time.After(cleanUp):
			cancel(errNoAnswer)
		}
	})()
	switch err := call(uncut); {
	case context.Cause(uncut) == errNoAnswer:
		return errors.Join(errNoAnswer, ctx.Err())
	case err != nil:
		return err
	}
	return ctx.Err()
}

// startTask starts the process of a container that is created, and tells when. If containerd ends before it has answered,
// the process may run all the same, for its shim goes on, and clients may be connected to it already: so the next
// containerd is asked before the start counts as failed. The error wraps runtime.ErrUnavailable then.
func (r *Runtime) startTask(ctx context.Context, id string) (monotime.Time, error) {
	service := r.client.TaskService()
	start := func() error {
		return finish(ctx, func(ctx context.Context) error {
			_, err := service.Start(ctx, &tasks.StartRequest{ContainerID: id})
			return native(err)
		})
	}
	unanswered := start()
	if !errors.Is(unanswered, runtime.ErrUnavailable) {
		return monotime.Now(), unanswered
	}
	ctx, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	var started monotime.Time
	again := retry(ctx, func() error {
		got, err := service.Get(ctx, &tasks.GetRequest{ContainerID: id})
		if err != nil {
			return native(err)
		}
		switch got.Process.Status {
		case task.Status_RUNNING:
			started, err = processStart(got.Process.Pid)
			return err
		case task.Status_CREATED: // the call never came to the shim
			err := start()
			started = monotime.Now()
			return err
		default:
			return errors.New("its process has ended")
		}
	})
	if again != nil {
		return 0, fmt.Errorf("%w; asked again: %v", unanswered, again)
	}
	return started, nil
}

// explainStart adds what a user can do, where runc's words do not say it.
func explainStart(err error) error {
	if diskFull(err) {
		return fmt.Errorf("no space left on device where containerd keeps containers: free some: %w", err)
	}
	return err
}

// makeLog makes a log that is not there yet.
func makeLog(name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make the folder of logs: %w", err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make the log of the service: %w", err)
	}
	return f.Close()
}

func fileSize(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}

// removePodDir removes the folder of a pod with its empty folders.
func (r *Runtime) removePodDir(id string) error {
	dir := r.podDir(id)
	if filepath.Dir(dir) != r.cfg.podsDir() {
		return fmt.Errorf("pod %q: not an ID", id)
	}
	if err := unmountBelow(dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
