// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/containerd/podinit"
)

// unknownExit is the exit status of a process whose task disappeared without one, for example because its shim was
// killed.
const unknownExit = 255

// logTail is the length of the log's end in an Exit, in bytes.
const logTail = 2048

// await waits for the exit of a pod's process, across restarts of containerd, deletes its task and delivers the Exit.
// The deletion ends the shim, and returns once all output is in the log.
func (r *Runtime) await(p *pod) {
	code, at, ok := r.waitTask(p.ID)
	if !ok {
		return
	}
	p.stop.Lock()
	defer p.stop.Unlock()
	r.mu.Lock()
	delivered := p.exited || r.pods[p.ID] != p
	r.mu.Unlock()
	if delivered {
		return // Stop was first
	}
	cause := outOfMemory(cgroupRoot, p.cgroup, code) // the deletion removes the cgroup
	cause = cmp.Or(r.lost(p), cause)
	ctx, cancel := context.WithTimeout(r.ctx, cleanUp)
	defer cancel()
	if _, err := r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: p.ID}); absent(err) != nil {
		r.cfg.Log.Warn("cannot delete the task of a pod that has exited; stopping the pod will", "pod", p.ID, "error", err)
	}
	r.noteExit(p.ID, code, at, cause)
}

// waitTask returns the exit status of a task; ok is false if the Runtime was closed before.
func (r *Runtime) waitTask(id string) (code uint32, at time.Time, ok bool) {
	for r.ctx.Err() == nil {
		reply, err := r.client.TaskService().Wait(r.ctx, &tasks.WaitRequest{ContainerID: id})
		if err == nil {
			return reply.ExitStatus, reply.ExitedAt.AsTime(), true
		}
		if errdefs.IsNotFound(native(err)) {
			return unknownExit, time.Now(), true
		}
		// Either containerd or its connection to the shim is away.
		select {
		case <-r.ctx.Done():
		case <-time.After(retryEvery):
		}
	}
	return 0, time.Time{}, false
}

// noteExit marks a pod as not running and delivers its Exit, once.
func (r *Runtime) noteExit(id string, code uint32, at time.Time, cause string) {
	r.mu.Lock()
	p := r.pods[id]
	if p == nil || p.exited {
		r.mu.Unlock()
		return
	}
	p.exited, p.Started = true, 0
	e := runtime.Exit{PodID: id, Service: p.Service, Code: code, At: at}
	begin, image := p.logBegin, p.image.name
	r.mu.Unlock()
	e.LogTail = readTail(r.cfg.logFile(e.Service), begin, logTail)
	e.Cause = cmp.Or(cause, notRun(image, e))
	deliver(r.ctx, r.exits, e)
}

// deliver sends a value to a channel without waiting. If the channel is full, nobody reads it, and Stop must not wait
// for a reader.
func deliver[T any](ctx context.Context, to chan<- T, value T) {
	select {
	case to <- value:
	default:
		go func() {
			select {
			case to <- value:
			case <-ctx.Done():
			}
		}()
	}
}

// notRun explains an exit if the pod's first process could not run the program of its image; the process says so in its
// log.
func notRun(image string, e runtime.Exit) string {
	why, found := strings.CutPrefix(lastLine(e.LogTail), podinit.Complaint)
	if !found || e.Code != podinit.NotFound && e.Code != podinit.CannotRun {
		return ""
	}
	return fmt.Sprintf("image %q cannot run %s: correct spec.command", image, why)
}

// lost says why a pod has lost its files; empty if it has not.
func (r *Runtime) lost(p *pod) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.lost
}
