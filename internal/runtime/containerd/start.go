// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
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
			return runtime.Pod{}, fmt.Errorf("service %s: %w", v1alpha1.KeyOf(s), err)
		}
	}
	warm := make(chan struct{})
	go warmCgroups(r.ownCgroup, warm)
	defer close(warm)
	return r.settle(ctx, s, c.id, func() (runtime.Pod, error) {
		if err := r.createMembers(ctx, s, c); err != nil {
			return runtime.Pod{}, err
		}
		if err := r.awaitAlone(ctx, s, len(c.kept) > 0); err != nil {
			return runtime.Pod{}, err
		}
		return r.launch(ctx, s, c, hooks, phase)
	})
}

// settle starts a pod, and removes its remains if that fails.
func (r *Runtime) settle(ctx context.Context, s *v1alpha1.WangellService, id string,
	start func() (runtime.Pod, error)) (runtime.Pod, error) {
	p, err := start()
	if err == nil {
		return p, nil
	}
	err = fmt.Errorf("service %s: start pod %s: %w", v1alpha1.KeyOf(s), id, err)
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

// createAgain creates a container from a lazy image after a failure: the snapshotter may just be restarting. If it
// cannot mount the image, such as after a reboot while the registry does not answer, the image is pulled in full.
func (r *Runtime) createAgain(ctx context.Context, s *v1alpha1.WangellService, info imageInfo, why error) (c *container,
	err error) {
	if errors.Is(why, runtime.ErrUnavailable) {
		err := patiently(ctx, func() error { c, why = r.createContainer(ctx, s, info); return why })
		if err == nil {
			return c, nil
		}
	}
	r.cfg.Log.Warn("image that was pulled lazily cannot be used; it is pulled in full", "service", v1alpha1.KeyOf(s),
		"image", s.Spec.Image, "error", why)
	r.images.forget(s.Spec.Image)
	r.images.forget(info.name) // the optimised one
	if info, err = r.images.ensureImage(ctx, s, s.Spec.Image, false, s.Spec.ImagePullPolicy, nil); err != nil {
		return nil, errors.Join(why, err)
	}
	return r.createContainer(ctx, s, info)
}

// imageOfPods returns the image of the running pods of s, so that another pod runs the same content even if the name
// has moved; it returns info if none runs, or if each pod must ask the registry.
func (r *Runtime) imageOfPods(s *v1alpha1.WangellService, info imageInfo) imageInfo {
	if s.Spec.ImagePullPolicy == corev1.PullAlways {
		return info
	}
	k, hash := v1alpha1.KeyOf(s), v1alpha1.Hash(&s.Spec)
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
	// The pod is known from here on, so that its exit is not missed and a failed start is cleaned up.
	if err := r.add(s, p); err != nil {
		return runtime.Pod{}, errors.Join(err, r.nets.Release(p.net.Name))
	}
	if err := r.connect(ctx, s, c, p); err != nil {
		return runtime.Pod{}, err
	}
	if err := r.begin(ctx, p, hooks, phase); err != nil {
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
	return &pod{net: n, keeps: len(c.kept) > 0, logBegin: fileSize(r.cfg.logFile(c.service)), image: c.image,
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

// begin reports the network of a registered pod, and runs its init containers.
func (r *Runtime) begin(ctx context.Context, p *pod, hooks runtime.StartHooks,
	phase func(runtime.Phase, monotime.Time)) error {
	phase(runtime.PhaseSandbox, monotime.Now())
	if hooks.Network != nil {
		hooks.Network(p.Pod)
	}
	return r.runInit(ctx, p.ID, hooks.Waits)
}

// run starts the processes of a registered pod. start starts the main container's process and returns the time.
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
