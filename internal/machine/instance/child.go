// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"wangell.loutres.me/internal/base/process"
)

// The pauses before a child that has exited is started again. After a child that lived longer than the longest
// pause, the next pause is the first one again.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// selfExe is this program, also after its file was replaced.
const selfExe = "/proc/self/exe"

// childGrace is the time between SIGTERM and SIGKILL when a child is stopped.
const childGrace = 5 * time.Second

// DaemonReady is the line that the daemon writes to its standard output once its gate is attached and
// has the table of services.
const DaemonReady = "ready"

// lastWord begins the line with the reason of the program's exit.
const lastWord = "wangell: "

// child is a part of the instance that runs as a process of its own and is kept running.
type child struct {
	name string
	path string
	args []string
	log  *slog.Logger
	// ready is called whenever a process has written the line DaemonReady; may be nil.
	ready func()
	// started is called with the PID of each process; may be nil.
	started func(pid int)
	// exited is called after the end of each process that had started, before the next one starts; may be nil.
	exited func()
}

// keep starts the process, and again whenever it exits, until ctx is cancelled; then it stops the process and
// returns nil. If the first process exits before it is ready, that is an error: the next one would exit as well.
//
// The child dies with this process, even if this one is killed: the kernel sends SIGKILL when the thread
// that started the child ends (PR_SET_PDEATHSIG), so this goroutine keeps its thread.
func (c child) keep(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := c.start(ctx)
	if ctx.Err() != nil && err != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the %s cannot start: %w", c.name, err)
	}
	restart := func(err error, pause time.Duration) {
		c.log.Error("the "+c.name+" has exited; it is restarted, and traffic continues meanwhile", "error", err, "in", pause)
	}
	s := process.Supervisor{
		Start: c.start, FirstPause: firstPause, LongestPause: longestPause, Stable: longestPause,
		Exited: func(p *process.Process, pause time.Duration) {
			restart(p.Err(), pause)
			if c.exited != nil {
				c.exited()
			}
		},
		Failed: restart,
	}
	s.Run(ctx, p)
	if p := s.Process(); p != nil {
		return p.Stop(childGrace)
	}
	return nil
}

// start starts the process and returns once it is ready. When ctx is cancelled before, the process is stopped.
func (c child) start(ctx context.Context) (*process.Process, error) {
	cmd := exec.Command(c.path, c.args...)
	if c.path == selfExe {
		cmd.Args[0] = "wangell"
	}
	// A process group of its own: Ctrl-C in a terminal is for this process, which stops the child in its turn.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	stdout, outErr := cmd.StdoutPipe()
	stderr, errErr := cmd.StderrPipe()
	if err := errors.Join(outErr, errErr); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	p, err := process.Start(cmd, func() error { return c.reap(cmd, stdout, stderr, ready) })
	if err != nil {
		return nil, err
	}
	if c.started != nil {
		c.started(p.PID())
	}
	select {
	case <-ready:
		if c.ready != nil {
			c.ready()
		}
		return p, nil
	case <-p.Ended():
		p.Close()
		return nil, p.Err()
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), p.Stop(childGrace))
	}
}

// reap reads what the process writes until it exits, closes ready when it says so, and returns the reason of the
// exit: the program's own words if it gave any. It never returns nil: even exit status 0 is an error.
func (c child) reap(cmd *exec.Cmd, stdout, stderr io.Reader, ready chan<- struct{}) error {
	last := make(chan string, 1)
	go func() { last <- forwardLog(stderr, c.log.With("part", c.name)) }()
	isReady := false
	for s := bufio.NewScanner(stdout); s.Scan(); {
		if s.Text() == DaemonReady && !isReady {
			isReady = true
			close(ready)
		}
	}
	reason := <-last
	err := cmd.Wait()
	switch {
	case reason != "":
		return errors.New(reason)
	case err == nil:
		return errors.New("exit status 0")
	}
	return err
}

// maxLogLine bounds a line of a child's log, in bytes.
const maxLogLine = 64 << 10

// forwardLog logs what a child writes, line by line, until it closes its end. A line that is a record of
// slog's JSON handler keeps its level, message and attributes; any other line becomes a message, except
// the program's reason for its exit, which is returned.
func forwardLog(r io.Reader, log *slog.Logger) (last string) {
	lines := bufio.NewReaderSize(r, maxLogLine)
	for {
		line, err := lines.ReadSlice('\n')
		if reason, ok := strings.CutPrefix(string(line), lastWord); ok {
			last = strings.TrimSpace(reason)
		} else if len(line) > 0 {
			level, message, attrs := parseRecord(line)
			log.LogAttrs(context.Background(), level, message, attrs...)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return last
		}
	}
}
