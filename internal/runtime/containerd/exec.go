// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/opencontainers/runtime-spec/specs-go"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/node/readiness"
)

const (
	// execPatience bounds the work left when the time is up: finishing the start of a command, and removing it.
	execPatience = 5 * time.Second
	// outputPatience bounds the wait for the output of a command that has ended: a child that it has left behind may
	// keep the pipes open.
	outputPatience = 500 * time.Millisecond
)

// Executor runs commands in pods. Unlike Runtime, it need not be in the process that started the pods.
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
// the command when ctx ends; the error then wraps the error of ctx, whichever step was interrupted. A pod has one
// container, so its name does not matter.
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
	folder, err := openPipes(e.dir)
	if err != nil {
		return 0, nil, err
	}
	defer folder.close()
	process.Args, process.Terminal = command, false
	out := &head{}
	beyond, cancel := outlast(ctx, execPatience)
	defer cancel()
	p, err := task.Exec(beyond, execID("probe-"), process,
		cio.NewCreator(cio.WithStreams(nil, out, out), cio.WithFIFODir(folder.path)))
	if err != nil {
		return 0, nil, native(err)
	}
	if code, err = run(ctx, p, func() {}); err == nil {
		drain(ctx, p)
	}
	return code, out.bytes(), errors.Join(err, remove(ctx, p))
}

// run starts a prepared process and waits until it or ctx ends. started is called in between.
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

// drain waits for the output of a process that has ended: it may arrive after the end is known.
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

// outlast returns a context that ends a while after ctx. If ctx cut a step short, a process could remain that nobody
// can kill: runc has started it in the pod, but containerd has not learned its PID.
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

// execID returns a unique name for a process.
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

const (
	// hangupPatience is the time between SIGHUP and SIGKILL for a command whose caller is gone.
	hangupPatience = 5 * time.Second
	// hangupLimit bounds the end of such a command, which waits for its start if that is going on.
	hangupLimit = time.Minute
)

// commandPrefix begins the IDs of commands of Attach.
const commandPrefix = "exec-"

var commandID = regexp.MustCompile("^" + commandPrefix + "[0-9a-f]{16}$")

// IsCommandID reports whether a text has the form of an ID from NewCommandID.
func IsCommandID(s string) bool { return commandID.MatchString(s) }

// EndCommand ends the command with an ID that another process attached to in a pod of a service, once that process is
// gone: the command and its children get SIGHUP, and after five seconds SIGKILL. It is no error if the command has
// already ended.
func (r *Runtime) EndCommand(k v1alpha1.Key, id string) error {
	if !IsCommandID(id) {
		return fmt.Errorf("service %s: end command: %q is no ID of a command", k, id)
	}
	ctx, cancel := context.WithTimeout(r.ctx, hangupLimit)
	defer cancel()
	pipes, err := inheritPipes(PipesDir(r.cfg.RunDir), id)
	if err != nil {
		return fmt.Errorf("service %s: end command: %w", k, err)
	}
	if err := r.endIn(ctx, r.podsOf(k), id, pipes); err != nil {
		return fmt.Errorf("service %s: end command: %w", k, err)
	}
	return nil
}

// endIn ends the command with an ID in whichever of the pods it is, and removes its pipes.
func (r *Runtime) endIn(ctx context.Context, pods []string, id string, p *pipes) error {
	var errs []error
	for _, pod := range pods {
		for _, container := range r.containersOf(pod) {
			errs = append(errs, endCommand(ctx, r.client, container, id))
		}
	}
	return errors.Join(append(errs, p.remove())...)
}

// EndOrphans ends the commands in pods whose callers were killed, such as probes of a daemon or a wangell exec, as
// EndCommand does. It returns once their pods can be stopped; the commands end in the background.
func (r *Runtime) EndOrphans() error {
	found, err := findOrphans(PipesDir(r.cfg.RunDir))
	r.endOrphans(found)
	return err
}

// endOrphans ends commands in the background.
func (r *Runtime) endOrphans(found []orphan) {
	for _, o := range found {
		r.tasks.Go(func() {
			ctx, cancel := context.WithTimeout(r.ctx, hangupLimit)
			defer cancel()
			err := r.endIn(ctx, r.allPods(), o.id, o.pipes)
			if err = errors.Join(err, o.lock.Close()); err != nil {
				r.cfg.Log.Warn("cannot end a command whose caller was killed", "command", o.id, "error", err)
			}
		})
	}
}

// allPods returns the IDs of all pods.
func (r *Runtime) allPods() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.pods))
}

// podsOf returns the IDs of the pods of a service.
func (r *Runtime) podsOf(k v1alpha1.Key) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.pods {
		if p.Service == k {
			ids = append(ids, id)
		}
	}
	return ids
}

// endCommand ends a command in a container, and removes its record. The command may be about to start: then containerd
// answers late or not at all, and keeps the record of a command that has begun to run meanwhile.
func endCommand(ctx context.Context, c *client.Client, container, id string) error {
	for {
		err := absent(tryEndCommand(ctx, c, container, id))
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryEvery):
		}
	}
}

// tryEndCommand is one attempt of endCommand.
func tryEndCommand(ctx context.Context, c *client.Client, container, id string) error {
	service := c.TaskService()
	got, err := service.Get(ctx, &tasks.GetRequest{ContainerID: container, ExecID: id})
	if err != nil {
		return err
	}
	if s := got.Process.Status; got.Process.Pid != 0 && s != task.Status_STOPPED {
		if err := (session{c, container, got.Process.Pid}).end(ctx, hangupPatience); err != nil {
			return err
		}
		if _, err := service.Wait(ctx, &tasks.WaitRequest{ContainerID: container, ExecID: id}); err != nil {
			return err
		}
	}
	_, err = service.DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: container, ExecID: id})
	return err
}

// CommandError is the error of a command that its container cannot run.
type CommandError struct {
	// NotFound is set if the container has no such program.
	NotFound bool
	// Reason says why it cannot be run, in a few words from the kernel or runc.
	Reason string

	err error
}

// Error implements error.
func (e *CommandError) Error() string { return e.err.Error() }

// Unwrap returns the error of containerd.
func (e *CommandError) Unwrap() error { return e.err }

// What runc says of a program that it cannot execute, and of a working directory that is not there: "exec:
// \"prog\": stat prog: no such file or directory", "exec /script: exec format error", "chdir to cwd (\"/none\") set in
// config.json failed: no such file or directory". containerd adds ": unknown".
var (
	execFailed  = regexp.MustCompile(`exec:? ("(?:[^"\\]|\\.)*"|/[^:]*): (.*?)(: unknown)?$`)
	chdirFailed = regexp.MustCompile(`(chdir to cwd .*?)(: unknown)?$`)
)

// commandError turns an error of starting a command into a CommandError if the command is the reason.
func commandError(err error) error {
	text := err.Error()
	if m := chdirFailed.FindStringSubmatch(text); m != nil {
		return &CommandError{Reason: m[1], err: err}
	}
	m := execFailed.FindStringSubmatch(text)
	if m == nil {
		return err
	}
	reason := m[2]
	if i := strings.LastIndex(reason, ": "); i >= 0 { // it begins with "stat prog"
		reason = reason[i+2:]
	}
	missing := strings.Contains(reason, "executable file not found") ||
		strings.Contains(reason, "no such file or directory")
	return &CommandError{NotFound: missing, Reason: reason, err: err}
}
