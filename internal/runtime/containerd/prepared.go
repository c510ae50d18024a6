// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

const (
	// preparedAge is how long a prepared pod is kept: apart from its spec and image, it depends on things that may
	// change, such as the machine's name servers.
	preparedAge = time.Hour
	// preparedCheck is how often prepared pods are checked.
	preparedCheck = time.Minute
)

// prepares reports whether a service asks for prepared pods.
func (r *Runtime) prepares() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.prepared.services) > 0
}

// takePrepared returns a prepared pod that fits, with its waiting process; nil if there is none.
func (r *Runtime) takePrepared(s *v1alpha1.WangellService, info imageInfo) *preparedPod {
	k, hash := v1alpha1.KeyOf(s), v1alpha1.Hash(&s.Spec)
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.prepared.pods[k]) > 0 {
		p := r.prepared.pods[k][0]
		r.prepared.pods[k] = r.prepared.pods[k][1:]
		if p.SpecHash == hash && p.image.digest == info.digest {
			if p.held = p.hold(); p.held != nil {
				return p
			}
		}
		r.garbage[p.ID] = true
	}
	return nil
}

// startPrepared starts the program of a prepared pod. On error the caller cleans up.
func (r *Runtime) startPrepared(ctx context.Context, s *v1alpha1.WangellService, p *preparedPod,
	hooks runtime.StartHooks, phase func(runtime.Phase, monotime.Time)) (runtime.Pod, error) {
	defer p.held.Close()
	p.logBegin = fileSize(r.cfg.logFile(p.Service))
	if err := r.add(s, p.pod); err != nil {
		return runtime.Pod{}, err
	}
	if err := r.begin(ctx, p.pod, hooks, phase); err != nil {
		return runtime.Pod{}, err
	}
	phase(runtime.PhaseCreated, monotime.Now())
	return r.run(ctx, s, p.pod, phase, func() (monotime.Time, error) { return r.wake(ctx, p) })
}

// keepPrepared removes prepared pods that no longer fit, and makes a missing one. It returns false if there is
// nothing to do.
func (r *Runtime) keepPrepared(ctx context.Context, now time.Time) bool {
	r.mu.Lock()
	services := maps.Clone(r.prepared.services)
	r.mu.Unlock()
	images := map[v1alpha1.Key]imageInfo{}
	for k, s := range services {
		info, err := r.images.ensureImage(ctx, s, s.Spec.Image, false, corev1.PullNever, nil)
		if err != nil {
			delete(services, k) // the next start says so
			continue
		}
		images[k] = r.imageOfPods(s, info)
	}
	r.mu.Lock()
	stale := r.prepared.drop(func(p *preparedPod) bool {
		s := services[p.Service]
		return s == nil || p.SpecHash != v1alpha1.Hash(&s.Spec) || p.image.digest != images[p.Service].digest ||
			now.Sub(p.made) >= preparedAge || !p.waits()
	})
	var missing *v1alpha1.WangellService
	for k, s := range services {
		have, want := len(r.prepared.pods[k]), s.Spec.PreparedPods()
		for ; have > want; have-- {
			stale = append(stale, r.prepared.pods[k][0])
			r.prepared.pods[k] = r.prepared.pods[k][1:]
		}
		current := r.prepared.services[k] == s // else it was forgotten or changed meanwhile
		if have < want && current && now.After(r.prepared.pause[k]) {
			missing = s
		}
	}
	for _, p := range stale {
		r.garbage[p.ID] = true
	}
	r.mu.Unlock()
	if missing == nil {
		return false
	}
	k := v1alpha1.KeyOf(missing)
	p, err := r.makePrepared(ctx, missing, images[k])
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err != nil:
		r.prepared.pause[k] = now.Add(preparedCheck)
		if ctx.Err() == nil {
			r.cfg.Log.Warn("no pod can be prepared: the next wake makes one", "service", k, "error", err)
		}
	case r.prepared.services[k] == nil || r.ctx.Err() != nil: // forgotten meanwhile
		r.garbage[p.ID] = true
	default:
		r.prepared.pods[k] = append(r.prepared.pods[k], p)
	}
	return true
}

// makePrepared makes a pod complete but for the start of its program. On error nothing of it remains, or the keeper
// removes it.
func (r *Runtime) makePrepared(ctx context.Context, s *v1alpha1.WangellService, info imageInfo) (*preparedPod, error) {
	c, err := r.createFor(ctx, s, info, true)
	if err != nil {
		return nil, err
	}
	p := &preparedPod{made: time.Now()}
	if err = r.fillPrepared(ctx, s, c, p); err == nil {
		return p, nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	left := r.purge(clean, c.id)
	if left != nil {
		r.remember(c.id)
	}
	if p.pod != nil { // unless the pod's folder named it already
		left = errors.Join(left, r.nets.Release(p.net.Name))
	}
	return nil, errors.Join(fmt.Errorf("prepare pod %s: %w", c.id, explainFull(err)), left)
}

// fillPrepared gives a prepared pod its container, with a process that waits. On error the caller cleans up.
func (r *Runtime) fillPrepared(ctx context.Context, s *v1alpha1.WangellService, c *container,
	p *preparedPod) (err error) {
	if p.pod, err = r.newPod(s, c); err != nil {
		return err
	}
	if err = r.connect(ctx, s, c, p.pod); err != nil {
		return err
	}
	if err = r.createMembers(ctx, s, c.id); err != nil {
		return err
	}
	if p.pid, err = r.createTask(ctx, c.id, c.rootfs, r.cfg.logFile(c.service)); err != nil {
		return err
	}
	if _, err = r.startTask(ctx, c.id); err != nil {
		return err
	}
	if p.begun, err = processStart(p.pid); err != nil {
		return err
	}
	return awaitWaits(ctx, p.pid)
}

// removePrepared removes the matching prepared pods at once.
func (r *Runtime) removePrepared(ctx context.Context, match func(*preparedPod) bool) error {
	r.mu.Lock()
	list := r.prepared.drop(match)
	r.mu.Unlock()
	var errs []error
	for _, p := range list {
		if err := r.purge(ctx, p.ID); err != nil {
			r.remember(p.ID)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
