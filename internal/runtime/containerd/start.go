// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

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
// cannot mount the image, as after a restart of the machine while the registry does not answer, the image is pulled
// in full.
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
