// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/opencontainers/runtime-spec/specs-go"

	"wangell.loutres.me/internal/node/readiness"
)

const (
	// execPatience bounds the rest of the work when time is up: to finish the start of a command, and to remove it.
	execPatience = 5 * time.Second
	// outputPatience bounds the wait for the output of a command that has ended: a child that it has left behind may
	// keep the pipes open.
	outputPatience = 500 * time.Millisecond
)

// Executor runs commands in pods. Unlike Runtime, it may be in another process than the one that started the pods.
type Executor struct {
	client *client.Client
	dir    string // for pipes
}

// NewExecutor returns an Executor for the containerd at a socket, to which it connects at the first call. dir is a
// folder for pipes, which is created when it is needed. Close ends it.
func NewExecutor(address, namespace, dir string) (*Executor, error) {
	c, err := connect(address, namespace)
	if err != nil {
		return nil, err
	}
	return &Executor{c, dir}, nil
}

// Close closes the connection.
func (e *Executor) Close() error { return e.client.Close() }

// Exec runs a command in a pod, with the user, the capabilities, the environment, the working directory and the limits
// of the pod's own process, and returns its exit code and the first readiness.MaxOutput bytes of its output. It kills
// the command when ctx ends; the error then wraps that of ctx, whichever step it interrupts. A pod has one container,
// so its name does not matter.
func (e *Executor) Exec(ctx context.Context, pod, _ string, command []string) (code int, output []byte, err error) {
	defer func() {
		// containerd reports a deadline that passes inside its shim as an error of an unknown class.
		if err != nil && ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}()
	task, process, err := processOf(ctx, e.client, pod)
	if err != nil {
		return 0, nil, err
	}
	process.Args, process.Terminal = command, false
	out := &head{}
	beyond, cancel := outlast(ctx, execPatience)
	defer cancel()
	p, err := task.Exec(beyond, execID("probe-"), process,
		cio.NewCreator(cio.WithStreams(nil, out, out), cio.WithFIFODir(e.dir)))
	if err != nil {
		return 0, nil, native(err)
	}
	if code, err = run(ctx, p, func() {}); err == nil {
		drain(ctx, p)
	}
	return code, out.bytes(), errors.Join(err, remove(ctx, p))
}

// run starts a prepared process and waits for its end, or for that of ctx. started is called in between.
func run(ctx context.Context, p client.Process, started func()) (code int, err error) {
	ended, err := p.Wait(ctx)
	if err != nil {
		return 0, native(err)
	}
	beyond, cancel := outlast(ctx, execPatience)
	defer cancel()
	if err := p.Start(beyond); err != nil {
		return 0, commandError(native(err))
	}
	started()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case status := <-ended:
		if ctx.Err() != nil { // it waits for both
			return 0, ctx.Err()
		}
		return int(status.ExitCode()), native(status.Error())
	}
}

// drain waits for the output of a process that has ended, which may arrive after the news of that.
func drain(ctx context.Context, p client.Process) {
	ctx, cancel := context.WithTimeout(ctx, outputPatience)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.IO().Wait() // returns at the latest when remove closes the pipes
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// remove kills a process if it still runs, and removes its record and its pipes. A child that the process has left
// behind may keep the pipes open: they are closed all the same.
func remove(ctx context.Context, p client.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), execPatience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := p.Delete(ctx, client.WithProcessKill)
		done <- absent(err)
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errors.Join(errors.New("a command or its children do not end after SIGKILL"), p.IO().Close())
	}
}

// outlast returns a context that ends a while after ctx. A step that ctx cut short would leave a process that nobody
// can kill: runc has started it in the pod, and containerd has not learned its PID.
func outlast(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(while, cancel) })
	return longer, func() { stop(); cancel() }
}

// head is a writer that keeps the first bytes.
type head struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write keeps as much as fits. It never fails, so that a process with a long output does not block.
func (h *head) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Write(p[:min(len(p), readiness.MaxOutput-h.buf.Len())])
	return len(p), nil
}

func (h *head) bytes() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return bytes.Clone(h.buf.Bytes())
}

// execID returns a name for a process that no other process has.
func execID(prefix string) string {
	var random [8]byte
	_, _ = rand.Read(random[:])
	return prefix + hex.EncodeToString(random[:])
}

// processOf returns the task of a pod, and a copy of the description of its process.
func processOf(ctx context.Context, c *client.Client, pod string) (client.Task, *specs.Process, error) {
	container, err := c.LoadContainer(ctx, pod)
	if err != nil {
		return nil, nil, native(err)
	}
	spec, err := container.Spec(ctx)
	if err != nil {
		return nil, nil, native(err)
	}
	task, err := container.Task(ctx, nil)
	if err != nil {
		return nil, nil, native(err)
	}
	process := *spec.Process
	return task, &process, nil
}
