// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"

	"wangell.loutres.me/internal/runtime"
)

// unknownExit is the exit status of a process whose task is gone without one, such as when its shim was killed.
const unknownExit = 255

// logTail is how much of a pod's output an Exit carries, in bytes.
const logTail = 2048

// await waits for the end of a running pod's process, across restarts of containerd, deletes its task and tells the
// exit. Deleting it ends the shim, and returns when all of the output is in the log.
func (r *Runtime) await(p *pod) {
	code, at, ok := r.waitTask(p.ID)
	if !ok {
		return
	}
	p.stop.Lock()
	defer p.stop.Unlock()
	r.mu.Lock()
	told := p.exited || r.pods[p.ID] != p
	r.mu.Unlock()
	if told {
		return // Stop was first
	}
	ctx, cancel := context.WithTimeout(r.ctx, cleanUp)
	defer cancel()
	if _, err := r.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: p.ID}); absent(err) != nil {
		r.cfg.Log.Warn("cannot delete the task of a pod that ended; stopping the pod does", "pod", p.ID, "error", err)
	}
	r.noteExit(p.ID, code, at)
}

// waitTask returns the exit status of a task; false if the Runtime was closed before it ended.
func (r *Runtime) waitTask(id string) (code uint32, at time.Time, ok bool) {
	for r.ctx.Err() == nil {
		reply, err := r.client.TaskService().Wait(r.ctx, &tasks.WaitRequest{ContainerID: id})
		if err == nil {
			return reply.ExitStatus, reply.ExitedAt.AsTime(), true
		}
		if errdefs.IsNotFound(native(err)) {
			return unknownExit, time.Now(), true
		}
		// containerd, or only its connection to the shim, is away.
		select {
		case <-r.ctx.Done():
		case <-time.After(retryEvery):
		}
	}
	return 0, time.Time{}, false
}

// noteExit marks a pod as not running and tells its exit, once.
func (r *Runtime) noteExit(id string, code uint32, at time.Time) {
	r.mu.Lock()
	p := r.pods[id]
	if p == nil || p.exited {
		r.mu.Unlock()
		return
	}
	p.exited, p.Started = true, 0
	e := runtime.Exit{PodID: id, Service: p.Service, Code: code, At: at}
	begin := p.logBegin
	r.mu.Unlock()
	e.LogTail = readTail(r.logFile(e.Service), begin, logTail)
	select {
	case r.exits <- e:
	default:
		// Nobody has read for a thousand exits; Stop must not wait for it.
		go func() {
			select {
			case r.exits <- e:
			case <-r.ctx.Done():
			}
		}()
	}
}
