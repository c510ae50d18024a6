// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

// Start starts a pod of s; see runtime.Runtime. With the pull policy Always the registry is asked first.
func (r *Runtime) Start(ctx context.Context, s *v1alpha1.WangellService, hooks runtime.StartHooks) (runtime.Pod,
	error) {
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
	info = r.imageOfPods(s, info)
	phase(runtime.PhaseImage, monotime.Now())
	if p := r.takePrepared(s, info); p != nil {
		return r.settle(ctx, s, p.ID, func() (runtime.Pod, error) {
			return r.startPrepared(ctx, s, p, hooks, phase)
		})
	}
	c := r.takeReady(ctx, s, info)
	if c == nil {
		if c, err = r.createContainer(ctx, s, info); errdefs.IsNotFound(err) {
			// The image was removed from containerd since the last look.
			r.images.forget(info.name)
			if info, err = r.images.ensure(ctx, s, nil); err == nil {
				c, err = r.createContainer(ctx, s, info)
			}
		}
		if err != nil && info.snapshotter == lazySnapshotter && ctx.Err() == nil {
			c, err = r.createAgain(ctx, s, info, err)
		}
		if err != nil {
			return runtime.Pod{}, fmt.Errorf("service %s: %w", runtime.KeyOf(s), err)
		}
	}
	warm := make(chan struct{})
	go warmCgroups(r.ownCgroup, warm)
	defer close(warm)
	return r.settle(ctx, s, c.id, func() (runtime.Pod, error) {
		if err := r.createMembers(ctx, s, c.id); err != nil {
			return runtime.Pod{}, err
		}
		if err := r.awaitAlone(ctx, s); err != nil {
			return runtime.Pod{}, err
		}
		return r.launch(ctx, s, c, hooks, phase)
	})
}

// settle starts a pod, and removes what is left of it if that fails.
func (r *Runtime) settle(ctx context.Context, s *v1alpha1.WangellService, id string,
	start func() (runtime.Pod, error)) (runtime.Pod, error) {
	p, err := start()
	if err == nil {
		return p, nil
	}
	err = fmt.Errorf("service %s: start pod %s: %w", runtime.KeyOf(s), id, err)
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	if left := r.purge(clean, id); left != nil {
		r.remember(id)
		// Kill the process at once: its end reaches clients only while the pod is known, which is until Start returns.
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPeriod)
		defer cancel()
		left = errors.Join(left, killCgroup(end, r.cfg.podCgroup(id)))
		err = errors.Join(err, fmt.Errorf("remove its remains (tried again later): %w", left))
	}
	return runtime.Pod{}, err
}

// imageOfPods returns the image of the running pods of s, so that another pod runs the same content even if the name
// has moved; info if none runs, or if each pod must ask the registry.
func (r *Runtime) imageOfPods(s *v1alpha1.WangellService, info imageInfo) imageInfo {
	if s.Spec.ImagePullPolicy == corev1.PullAlways {
		return info
	}
	k, hash := runtime.KeyOf(s), v1alpha1.Hash(&s.Spec)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pods {
		same := p.image.name == info.name || s.Spec.Optimises() && r.images.standsFor(p.image.name, s.Spec.Image)
		if p.Service == k && !p.exited && p.SpecHash == hash && same {
			return p.image
		}
	}
	return info
}

// launch connects a container to a network and starts its process. On error the caller cleans up.
func (r *Runtime) launch(ctx context.Context, s *v1alpha1.WangellService, c *container, hooks runtime.StartHooks,
	phase func(runtime.Phase, monotime.Time)) (runtime.Pod, error) {
	p, err := r.newPod(s, c)
	if err != nil {
		return runtime.Pod{}, err
	}
	// Known from here on, so that its exit is not missed and a failed start is cleaned up.
	if err := r.add(s, p); err != nil {
		return runtime.Pod{}, errors.Join(err, r.nets.Release(p.net.Name))
	}
	if err := r.connect(ctx, s, c, p); err != nil {
		return runtime.Pod{}, err
	}
	phase(runtime.PhaseSandbox, monotime.Now())
	if hooks.Network != nil {
		hooks.Network(p.Pod)
	}
	if err := r.runInit(ctx, c.id, hooks.Waits); err != nil {
		return runtime.Pod{}, err
	}
	if _, err := r.createTask(ctx, c.id, c.rootfs, r.cfg.logFile(c.service)); err != nil {
		return runtime.Pod{}, explainStart(err, s.Spec.Image)
	}
	phase(runtime.PhaseCreated, monotime.Now())
	return r.run(ctx, s, p, phase, func() (monotime.Time, error) { return r.startTask(ctx, p.ID) })
}

// newPod takes a network for a container.
func (r *Runtime) newPod(s *v1alpha1.WangellService, c *container) (*pod, error) {
	n, err := r.nets.Take()
	if err != nil {
		return nil, err
	}
	if names := r.cfg.Names; names != nil {
		names.Assign(n.Name, s.Namespace)
		if isNameServer(s) {
			names.Detach(n.Name)
		}
	}
	return &pod{net: n, logBegin: fileSize(r.cfg.logFile(c.service)), image: c.image,
		snapshotter: c.image.snapshotter, cgroup: r.cfg.containerCgroup(c.id, s.Name, alone(s)),
		Pod: runtime.Pod{
			ID: c.id, Service: c.service, SpecHash: c.hash, Addr: n.Addr, Netns: n.Netns, HostDevice: n.HostDevice,
			ImageDigest: c.image.digest.String(), Cgroup: r.cfg.podCgroup(c.id),
		}}, nil
}

// connect prepares everything besides the network that a pod needs before its process is created.
func (r *Runtime) connect(ctx context.Context, s *v1alpha1.WangellService, c *container, p *pod) error {
	if err := r.connectPodDir(c.service, c.id, p.Netns, p.Addr); err != nil {
		return err
	}
	return r.makeVolumes(ctx, s, c)
}

// run starts the processes of a registered pod: that of its main container by start, which returns the time of that.
func (r *Runtime) run(ctx context.Context, s *v1alpha1.WangellService, p *pod,
	phase func(runtime.Phase, monotime.Time), start func() (monotime.Time, error)) (runtime.Pod, error) {
	started, err := start()
	if err != nil {
		return runtime.Pod{}, explainStart(err, s.Spec.Image)
	}
	phase(runtime.PhaseStarted, started)
	if err := r.startContainers(ctx, p.ID); err != nil {
		return runtime.Pod{}, err
	}
	r.mu.Lock()
	p.Started = started
	running := p.Pod
	r.mu.Unlock()
	ended := make(chan struct{})
	r.tasks.Go(func() {
		defer close(ended)
		r.await(p)
	})
	if s.Spec.Optimises() && p.snapshotter == lazySnapshotter && r.cfg.Optimise != nil {
		r.tasks.Go(func() { r.optimiseLater(s, p.image, ended) })
	}
	return running, nil
}

// createTask creates the process of a container, which writes to a log, and returns its number.
func (r *Runtime) createTask(ctx context.Context, id string, rootfs []*types.Mount, log string) (pid uint32,
	err error) {
	if err := makeLog(log); err != nil {
		return 0, err
	}
	// The shim opens the file itself and writes to it until the process exits, also without this process. The two streams
	// name the file differently: given one name, or a file:// URI, the shim would close it for both when the first stream
	// ends, and lose the last output of the other (containerd, pkg/process/io.go: copyPipes).
	err = finish(ctx, func(ctx context.Context) error {
		created, err := r.client.TaskService().Create(ctx, &tasks.CreateTaskRequest{
			ContainerID: id, Rootfs: rootfs, Stdout: log, Stderr: filepath.Dir(log) + "/./" + filepath.Base(log),
		})
		if err == nil {
			pid = created.Pid
		}
		return native(err)
	})
	return pid, err
}

// errNoAnswer is the error of a cancelled call that containerd did not complete in time.
var errNoAnswer = fmt.Errorf("containerd has not answered %v after the start was given up", cleanUp)

// finish makes a call by which containerd starts processes, and lets the call complete if ctx ends meanwhile: for an
// interrupted call, containerd would lose track of what the shim and runc go on to create. It returns the error of
// ctx if that has ended, and errNoAnswer if the call takes cleanUp longer.
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

// startTask starts the process of a created container and returns the time of the start. If containerd exits before
// it answers, the process may still run, because its shim goes on, and may already have clients. So the next
// containerd is asked before the start counts as failed; the error wraps runtime.ErrUnavailable then.
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
		case task.Status_CREATED: // the call never reached the shim
			err := start()
			started = monotime.Now()
			return err
		default:
			return errors.New("its process has exited")
		}
	})
	if again != nil {
		return 0, fmt.Errorf("%w; asked again: %v", unanswered, again)
	}
	return started, nil
}
