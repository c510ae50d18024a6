// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// Stop stops a pod and removes it; see runtime.Runtime. spec.stopSignal, or else the image's STOPSIGNAL, replaces
// SIGTERM. A process that the signal would end if it were not PID 1 is killed at once; see endsByDefault. While
// containerd is away, Stop waits for it until ctx ends.
func (r *Runtime) Stop(ctx context.Context, id string, grace time.Duration) error {
	r.mu.Lock()
	p := r.pods[id]
	r.mu.Unlock()
	if p == nil {
		return nil
	}
	p.stop.Lock()
	defer p.stop.Unlock()
	defer r.keeper.stopped()
	period := &gracePeriod{length: grace}
	if err := retry(ctx, func() error { return r.end(ctx, id, period) }); err != nil {
		return fmt.Errorf("stop pod %s: %w", id, err)
	}
	return nil
}

// kill kills a pod and removes whatever is left of it.
func (r *Runtime) kill(ctx context.Context, id string) error { return r.end(ctx, id, &gracePeriod{}) }

// end asks the pod's processes to exit if there is a grace period, kills them after that, and removes the pod. Any part
// of the pod may be missing.
func (r *Runtime) end(ctx context.Context, id string, grace *gracePeriod) error {
	if err := r.endTasks(ctx, id, grace); err != nil {
		return err
	}
	r.mu.Lock()
	network := ""
	if p := r.pods[id]; p != nil {
		network = p.net.Name
	}
	r.mu.Unlock()
	if err := r.removePod(ctx, id, network); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.pods, id)
	r.mu.Unlock()
	return nil
}

// endTasks ends the processes of a pod: its sidecars after its other containers, as Kubernetes does.
func (r *Runtime) endTasks(ctx context.Context, pod string, grace *gracePeriod) error {
	members := r.membersOf(pod)
	if len(members) == 0 {
		return r.endTask(ctx, pod, pod, grace)
	}
	for _, m := range members {
		m.finish()
	}
	for _, sidecars := range []bool{false, true} {
		var ends sync.WaitGroup
		errs := make([]error, len(members)+1)
		if !sidecars {
			ends.Go(func() { errs[len(members)] = r.endTask(ctx, pod, pod, grace) })
		}
		for i, m := range members {
			if (m.kind == kindSidecar) == sidecars {
				ends.Go(func() { errs[i] = r.endTask(ctx, pod, m.id, grace) })
			}
		}
		ends.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

// killPeriod is the time that a process has to exit after SIGKILL.
const killPeriod = 10 * time.Second

// endTask ends and deletes the task of a container of a pod.
func (r *Runtime) endTask(ctx context.Context, pod, id string, grace *gracePeriod) error {
	service := r.client.TaskService()
	got, err := service.Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err != nil {
		return absent(err)
	}
	if got.Process.Status == task.Status_PAUSED { // containerd's name for frozen
		got.Process.Status = task.Status_RUNNING
	}
	if got.Process.Status != task.Status_STOPPED {
		if err := r.signalUntilEnd(ctx, pod, id, got.Process, grace); err != nil {
			return err
		}
	}
	reply, err := service.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	if err == nil {
		r.noteExit(id, reply.ExitStatus, reply.ExitedAt.AsTime(), "")
	}
	return absent(err)
}

// signalUntilEnd sends the stop signal, and SIGKILL after the grace period, and waits for the exit.
func (r *Runtime) signalUntilEnd(ctx context.Context, pod, id string, p *task.Process, grace *gracePeriod) error {
	waited := make(chan error, 1)
	waitCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, err := r.client.TaskService().Wait(waitCtx, &tasks.WaitRequest{ContainerID: id})
		waited <- absent(err)
	}()
	if err := r.thaw(id); err != nil {
		return err
	}
	// A process that is created but not started has no signal handler yet.
	stop := r.stopSignal(ctx, id)
	if grace.left(monotime.Now()) > 0 && p.Status == task.Status_RUNNING && !endsByDefault(p.Pid, stop) {
		if err := r.signal(ctx, id, stop, false); err != nil {
			return err
		}
		left := grace.begin(monotime.Now())
		if id == pod {
			deliver(r.ctx, r.ending, runtime.Ending{PodID: pod, Grace: left, Ended: func() bool { return ended(p.Pid) }})
		}
		if ended, err := r.awaitEnd(ctx, id, waited, left); ended {
			return err
		}
	}
	if err := r.signal(ctx, id, unix.SIGKILL, true); err != nil {
		return err
	}
	if err := r.thaw(id); err != nil {
		return err
	}
	select {
	case err := <-waited:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(killPeriod):
		return fmt.Errorf("its process has not exited %v after SIGKILL", killPeriod)
	}
}

// rethawEvery is the interval at which a pod that is ending is thawed again: a daemon that did not know of the end may
// just have frozen it.
const rethawEvery = 100 * time.Millisecond

// awaitEnd waits for the end of a pod's process that has got its signal. It returns false if that takes longer than
// grace.
func (r *Runtime) awaitEnd(ctx context.Context, id string, waited <-chan error, grace time.Duration) (bool, error) {
	kill := time.After(grace)
	again := time.NewTicker(rethawEvery)
	defer again.Stop()
	for {
		select {
		case err := <-waited:
			return true, err
		case <-ctx.Done():
			return true, ctx.Err()
		case <-kill:
			return false, nil
		case <-again.C:
			if err := r.thaw(id); err != nil {
				return true, err
			}
		}
	}
}

// thaw thaws a frozen pod. With cgroups of version 1, even SIGKILL does not end a frozen process.
func (r *Runtime) thaw(id string) error {
	cgroup := r.cfg.podCgroup(id)
	if err := r.freezer.Thaw(cgroup); err != nil && !r.freezer.Gone(cgroup) {
		return fmt.Errorf("thaw pod %s: %w", id, err)
	}
	return nil
}

func (r *Runtime) signal(ctx context.Context, id string, s unix.Signal, all bool) error {
	_, err := r.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(s), All: all})
	if err = native(err); errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return nil // it has exited meanwhile; the wait returns
	}
	return err
}

// stopSignal returns the signal of the pod's spec or image, or SIGTERM.
func (r *Runtime) stopSignal(ctx context.Context, id string) unix.Signal {
	record, err := r.client.ContainerService().Get(ctx, id)
	if err != nil || record.Labels[labelStopSignal] == "" {
		return unix.SIGTERM
	}
	// Docker also accepts the signal of an image in lower case.
	n, err := v1alpha1.ParseSignal(strings.ToUpper(record.Labels[labelStopSignal]))
	if err != nil {
		return unix.SIGTERM
	}
	return unix.Signal(n)
}

// gracePeriod is the time that the processes of a pod have to end. It begins when the first of them has got its stop
// signal, which takes long while a thousand pods are being stopped. If its length is 0, SIGKILL is the only signal.
type gracePeriod struct {
	length time.Duration

	mu    sync.Mutex
	began monotime.Time // 0 until the first signal
}

// begin begins the period, unless it has begun, and returns the time left.
func (g *gracePeriod) begin(now monotime.Time) time.Duration {
	g.mu.Lock()
	if g.began == 0 {
		g.began = now
	}
	g.mu.Unlock()
	return g.left(now)
}

// left returns the time left; 0 once the period is over.
func (g *gracePeriod) left(now monotime.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.began == 0 {
		return g.length
	}
	return max(0, g.length-now.Sub(g.began))
}
