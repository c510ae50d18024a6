// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/base/process"
)

// Size is the size of a terminal in characters.
type Size struct{ Width, Height int }

// Command is a command for a person or a script, with streams of its own.
type Command struct {
	Args []string
	// RunsOnce is set if the container is not started again after its end: then the command does not wait for it.
	RunsOnce bool
	// ID is a result of NewCommandID, by which EndCommand finds the command. Default: a new one.
	ID string
	// Env has further variables as NAME=VALUE. They replace the pod's variables of the same name.
	Env []string
	// Dir is the working directory. Default: the one of the pod's own process.
	Dir string
	// Stdin is nil if the command has none. It is closed for the command when the reader ends.
	Stdin io.Reader
	// Stdout and Stderr get the output; with TTY, Stdout gets all of it.
	Stdout, Stderr io.Writer
	// TTY gives the command a terminal of its own. Size is the terminal's first size, if set. Sizes delivers the size
	// of the terminal that shows it, and every change; it is not closed, and may be nil.
	TTY   bool
	Size  Size
	Sizes <-chan Size
}

// Attach runs a command in a pod as Executor.Exec does, connected to its streams, and returns its exit code once it and
// its output have ended; 128+n for signal n. It kills the command and its children when ctx ends, and when its output
// cannot be written; the error then wraps the error of ctx or of the writer. If the container cannot run it, the error
// is a CommandError, and if the container does not run, ErrNotRunning. dir is a folder for pipes.
func Attach(ctx context.Context, c *client.Client, dir, pod string, command Command) (code int, err error) {
	caller := ctx
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer func() {
		switch {
		case err == nil:
		case caller.Err() != nil && !errors.Is(err, caller.Err()):
			err = fmt.Errorf("%w: %w", caller.Err(), err)
		case caller.Err() == nil && ctx.Err() != nil:
			err = context.Cause(ctx)
		}
	}()
	patience := execPatience
	if command.RunsOnce {
		patience = 0
	}
	task, process, err := runningProcessOf(ctx, c, pod, patience)
	if err != nil {
		return 0, err
	}
	process.Args, process.Terminal, process.Env = command.Args, command.TTY, mergeEnv(process.Env, command.Env)
	if command.Dir != "" {
		process.Cwd = command.Dir
	}
	if command.TTY && command.Size != (Size{}) {
		process.ConsoleSize = &specs.Box{Height: uint(command.Size.Height), Width: uint(command.Size.Width)}
	}
	folder, err := openPipes(dir)
	if err != nil {
		return 0, err
	}
	defer folder.close()
	out, stderr := &progress{w: command.Stdout, failed: fail}, &progress{w: command.Stderr, failed: fail}
	stdin := &eofReader{r: command.Stdin, ended: make(chan struct{})}
	streams := cio.WithStreams(stdin, out, stderr)
	switch {
	case command.Stdin == nil:
		streams = cio.WithStreams(nil, out, stderr)
	case command.TTY:
		streams = cio.WithStreams(stdin, out, nil)
	}
	options := []cio.Opt{streams, cio.WithFIFODir(folder.path)}
	if command.TTY {
		options = append(options, cio.WithTerminal)
	}
	beyond, cancel := outlast(ctx, execPatience)
	defer cancel()
	p, err := task.Exec(beyond, cmp.Or(command.ID, NewCommandID()), process, cio.NewCreator(options...))
	if err != nil {
		return 0, native(err)
	}
	watching, stop := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	// Before the start, containerd would accept both and ignore them.
	code, err = run(ctx, p, func() {
		watchers.Go(func() { resize(watching, p, command.Sizes) })
		watchers.Go(func() { closeStdin(watching, p, stdin.ended) })
	})
	stop()
	watchers.Wait()
	switch {
	case err == nil:
		awaitOutput(ctx, p, out, stderr)
	case p.Pid() != 0:
		err = errors.Join(err, kill(ctx, session{c, pod, p.Pid()}))
	}
	return code, errors.Join(err, remove(ctx, p))
}

// kill kills the processes of a command that is interrupted.
func kill(ctx context.Context, s session) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), execPatience)
	defer cancel()
	return s.end(ctx, 0)
}

// ErrNotRunning says that a container of a pod does not run.
var ErrNotRunning = errors.New("the container does not run")

// runningProcessOf is processOf for a container that may be about to start: a pod serves before all its containers run.
// If the container does not run within patience, the error is ErrNotRunning.
func runningProcessOf(ctx context.Context, c *client.Client, pod string, patience time.Duration) (client.Task,
	*specs.Process, error) {
	for begin := time.Now(); ; {
		task, process, err := processOf(ctx, c, pod)
		if !errdefs.IsNotFound(err) {
			return task, process, err
		}
		if time.Since(begin) >= patience {
			return nil, nil, fmt.Errorf("%w: %w", ErrNotRunning, err)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(retryEvery):
		}
	}
}

// mergeEnv returns an environment in which further variables replace those of the same name.
func mergeEnv(env, further []string) []string {
	given := map[string]bool{}
	for _, e := range further {
		name, _, _ := strings.Cut(e, "=")
		given[name] = true
	}
	var merged []string
	for _, e := range env {
		if name, _, _ := strings.Cut(e, "="); !given[name] {
			merged = append(merged, e)
		}
	}
	return append(merged, further...)
}

// resize sets the sizes of a process's terminal as they arrive. A failure means that the process has ended.
func resize(ctx context.Context, p client.Process, sizes <-chan Size) {
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-sizes:
			_ = p.Resize(ctx, uint32(s.Width), uint32(s.Height))
		}
	}
}

// closeStdin closes the standard input of a process once everything has been copied to it, because the shim holds the
// pipe open. A failure means that the process has ended.
func closeStdin(ctx context.Context, p client.Process, ended <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-ended:
		_ = p.CloseIO(ctx, client.WithStdinCloser)
	}
}

// awaitOutput waits for the output of a process that has ended. A child that it has left behind may keep the pipes
// open: then the wait ends once there was no output for outputPatience. A slow reader of the output does not end it.
func awaitOutput(ctx context.Context, p client.Process, outputs ...*progress) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.IO().Wait() // returns at the latest when remove closes the pipes
	}()
	for last := time.Now(); time.Since(last) < outputPatience; {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-time.After(outputPatience / 10):
		}
		for _, o := range outputs {
			if at := o.latest(); at.After(last) {
				last = at
			}
		}
	}
}

// progress records the time of the last write.
type progress struct {
	w      io.Writer
	failed func(error) // called with an error of w

	mu   sync.Mutex
	busy bool
	at   time.Time
}

// Write implements io.Writer.
func (p *progress) Write(b []byte) (int, error) {
	p.note(true)
	defer p.note(false)
	n, err := p.w.Write(b)
	if err != nil {
		p.failed(fmt.Errorf("write its output: %w", err))
	}
	return n, err
}

func (p *progress) note(busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy, p.at = busy, time.Now()
}

// latest returns the time of the last write; now, if one is going on.
func (p *progress) latest() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy {
		return time.Now()
	}
	return p.at
}

// eofReader closes ended when the reader has ended.
type eofReader struct {
	r     io.Reader
	once  sync.Once
	ended chan struct{}
}

// Read implements io.Reader.
func (e *eofReader) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	if err != nil {
		e.once.Do(func() { close(e.ended) })
	}
	return n, err
}

// NewCommandID returns a unique ID for a command.
func NewCommandID() string { return execID(commandPrefix) }

// session is the session of processes (setsid(2)) that a command in a container leads: runc makes one for each. A
// process that has left it, as daemons do, does not belong to the command.
type session struct {
	client    *client.Client
	container string
	leader    uint32
}

// end ends the processes of the session. They get SIGHUP, as when a terminal is closed, and SIGKILL after grace;
// without a grace period they get SIGKILL at once. The error names the processes that have not ended when ctx ends.
func (s session) end(ctx context.Context, grace time.Duration) error {
	hangup, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	told := map[int]bool{}
	for {
		list, err := s.processes(ctx)
		if err != nil || len(list) == 0 {
			return err
		}
		patience, kill := hangup, hangup.Err() != nil
		if kill {
			patience = ctx
		}
		var left []string
		for _, p := range list {
			switch {
			case kill:
				err = errors.Join(err, p.Signal(unix.SIGKILL))
			case !told[p.PID()]:
				told[p.PID()] = true
				err = errors.Join(err, p.Signal(unix.SIGHUP), p.Signal(unix.SIGCONT)) // a stopped one would not notice
			}
		}
		for _, p := range list {
			select {
			case <-p.Ended():
			case <-patience.Done():
				left = append(left, strconv.Itoa(p.PID()))
			}
			p.Close()
		}
		if err != nil {
			return fmt.Errorf("end the processes of a command: %w", err)
		}
		if ctx.Err() != nil && len(left) > 0 {
			return fmt.Errorf("processes %s of a command have not ended: %w", strings.Join(left, ", "), ctx.Err())
		}
	}
}

// processes returns the processes of the session that run, in order. The caller closes them.
func (s session) processes(ctx context.Context) ([]*process.Process, error) {
	reply, err := s.client.TaskService().ListPids(ctx, &tasks.ListPidsRequest{ContainerID: s.container})
	if err != nil {
		return nil, absent(err)
	}
	var list []*process.Process
	for _, info := range reply.Processes {
		p, err := process.Open(int(info.Pid))
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			for _, p := range list {
				p.Close()
			}
			return nil, err
		}
		// Read while the pidfd is open, so that the number cannot mean another process.
		fields, err := process.Stat(p.PID())
		if err != nil || len(fields) <= process.StatSession || ended(info.Pid) ||
			fields[process.StatSession] != strconv.FormatUint(uint64(s.leader), 10) {
			p.Close()
			continue
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *process.Process) int { return a.PID() - b.PID() })
	return list, nil
}
