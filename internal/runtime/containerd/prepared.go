// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/containerd/podinit"
)

// preparedPod is a pod whose first process waits before it becomes the program. It has its network and its volumes.
type preparedPod struct {
	*pod
	pid   uint32
	begun monotime.Time // when the waiting process began, which distinguishes it from a later one with its PID
	made  time.Time
	held  *process.Process // the waiting process, once the pod is taken for a wake
}

// preparedPods are the services with spec.sleep.prepared, and their prepared pods, oldest first. They are guarded by
// Runtime.mu.
type preparedPods struct {
	services map[v1alpha1.Key]*v1alpha1.WangellService
	pods     map[v1alpha1.Key][]*preparedPod
	pause    map[v1alpha1.Key]time.Time // no pod is made until then, because the last attempt failed
}

func (c *preparedPods) init() {
	c.services, c.pods = map[v1alpha1.Key]*v1alpha1.WangellService{}, map[v1alpha1.Key][]*preparedPod{}
	c.pause = map[v1alpha1.Key]time.Time{}
}

// want records what a service asks for.
func (c *preparedPods) want(s *v1alpha1.WangellService) {
	k := v1alpha1.KeyOf(s)
	delete(c.pause, k)
	if s.Spec.PreparedPods() > 0 {
		c.services[k] = s
	} else {
		delete(c.services, k)
	}
}

// drop removes the matching pods and returns them.
func (c *preparedPods) drop(match func(*preparedPod) bool) (dropped []*preparedPod) {
	for k, list := range c.pods {
		c.pods[k] = slices.DeleteFunc(list, func(p *preparedPod) bool {
			if match(p) {
				dropped = append(dropped, p)
				return true
			}
			return false
		})
		if len(c.pods[k]) == 0 {
			delete(c.pods, k)
		}
	}
	return dropped
}

const (
	// preparedAge is how long a prepared pod is kept: apart from its spec and image, it depends on things that may
	// change, such as the machine's name servers.
	preparedAge = time.Hour
	// preparedCheck is how often prepared pods are checked.
	preparedCheck = time.Minute
)

// prepares reports whether any service asks for prepared pods.
func (r *Runtime) prepares() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.prepared.services) > 0
}

// takePrepared returns a prepared pod that fits a service, with its waiting process; nil if there is none.
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

// makePrepared makes a pod that lacks only the start of its program. On error nothing of it remains, or the keeper
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
	if err = r.createMembers(ctx, s, c); err != nil {
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

// waitEvery is the interval at which a new process is checked until it waits.
const waitEvery = time.Millisecond

// unblocked are the signals that podinit.Wait does not block, and that the kernel does not let it block.
const unblocked uint64 = 1<<(podinit.Wake-1) | 1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1)

// inWait decides isWaiting from the process's status file (proc_pid_status(5)). While the process waits, the kernel
// shows the signal as not blocked.
func inWait(status string) bool {
	lines := statusLines(status)
	blocked, err := strconv.ParseUint(lines["SigBlk"], 16, 64)
	return err == nil && blocked|unblocked == ^uint64(0) && lines["Name"] == filepath.Base(waitPath) &&
		!strings.ContainsAny(lines["State"], "ZXT") // ended or stopped
}

// isWaiting reports whether a process is podinit.Wait and holds back the signal that it waits for.
func isWaiting(pid uint32) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && inWait(string(text))
}

// awaitWaits returns once a process that was just started waits.
func awaitWaits(ctx context.Context, pid uint32) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUp)
	defer cancel()
	for {
		if ended(pid) {
			return errors.New("its first process has ended")
		}
		if isWaiting(pid) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("its first process does not wait: %w", ctx.Err())
		case <-time.After(waitEvery):
		}
	}
}

// waits reports whether its process still waits.
func (p *preparedPod) waits() bool {
	begun, err := processStart(p.pid)
	return err == nil && max(begun.Sub(p.begun), p.begun.Sub(begun)) < 2*process.Tick && isWaiting(p.pid)
}

// hold returns the process of a prepared pod if it still waits, and nil otherwise. The caller closes it.
func (p *preparedPod) hold() *process.Process {
	held, err := process.Open(int(p.pid))
	if err != nil {
		return nil
	}
	if !p.waits() { // checked only after the process was opened, as its PID may have been reused before
		held.Close()
		return nil
	}
	return held
}

// wake makes the process of a prepared pod become the pod's program, and returns the time. The time is recorded first,
// so that another process of Wangell knows that the pod is no longer merely prepared.
func (r *Runtime) wake(ctx context.Context, p *preparedPod) (monotime.Time, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	now := monotime.Now()
	if err := os.WriteFile(r.cfg.wokenFile(p.ID), []byte(strconv.FormatInt(int64(now), 10)), 0o600); err != nil {
		return 0, err
	}
	return now, p.held.Signal(podinit.Wake)
}

// woken returns when a prepared pod was woken.
func (r *Runtime) woken(id string) (monotime.Time, error) {
	text, err := os.ReadFile(r.cfg.wokenFile(id))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return monotime.Time(n), err
}

// onlyPrepared reports whether a pod's first process runs, but not yet the pod's program.
func (r *Runtime) onlyPrepared(id string, labels map[string]string, pid uint32) bool {
	if labels[labelPrepared] == "" {
		return false
	}
	if _, err := r.woken(id); err != nil {
		return true
	}
	return isWaiting(pid) // Wangell was killed before it sent the signal
}
