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
	"github.com/containerd/containerd/v2/core/mount"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

func mountsToProto(list []mount.Mount) []*types.Mount {
	var out []*types.Mount
	for _, m := range list {
		out = append(out, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return out
}

// createTask creates the process of a container, which writes to a log, and returns its number.
func (r *Runtime) createTask(ctx context.Context, id string, rootfs []*types.Mount, log string) (pid uint32,
	err error) {
	if err := makeLog(log); err != nil {
		return 0, err
	}
	// The shim opens the file itself and writes to it until the process exits, even if this process is gone. The two
	// streams name the file differently: given one name, or a file:// URI, the shim would close it for both when the
	// first stream ends, and lose the last output of the other (containerd, pkg/process/io.go: copyPipes).
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

// errNoAnswer says that containerd did not complete a cancelled call in time.
var errNoAnswer = fmt.Errorf("containerd has not answered %v after the start was given up", cleanUp)

// finish makes a call by which containerd starts processes, and lets the call complete if ctx ends meanwhile: after an
// interruption, containerd would lose track of what the shim and runc still create. It returns the error of ctx if ctx
// has ended, and errNoAnswer if the call then takes longer than cleanUp.
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
