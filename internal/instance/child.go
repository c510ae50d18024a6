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
)

// The pace at which a child that ends is started again: it doubles from the first to the longest pause,
// and starts anew after a child that lived longer than the longest pause.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// childGrace is how long a child has between SIGTERM and SIGKILL.
const childGrace = 5 * time.Second

// DaemonReady is the line that the daemon writes to its standard output once its gate is attached and
// has the table of services.
const DaemonReady = "ready"

// lastWord is how the line begins with which the program tells why it ends.
const lastWord = "wangell: "

// child is a process that is kept running.
type child struct {
	name string
	path string
	args []string
	log  *slog.Logger
	// ready is called whenever a process has written the line DaemonReady; may be nil.
	ready func()
	// started is called with the pid of each process; may be nil.
	started func(pid int)
}

// keep starts the process, and again whenever it ends, until ctx ends; then it stops the process and
// returns nil. A process that ends before any was ready is an error: it would end again.
//
// The child dies with this process, even if this one is killed: the kernel sends SIGKILL when the thread
// that started the child ends (PR_SET_PDEATHSIG), so this goroutine keeps its thread.
func (c child) keep(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pause := firstPause
	everReady := false
	for {
		begin := time.Now()
		ready, err := c.once(ctx)
		everReady = everReady || ready
		switch {
		case ctx.Err() != nil:
			return nil
		case !everReady:
			return fmt.Errorf("the %s cannot start: %w", c.name, err)
		case time.Since(begin) > longestPause:
			pause = firstPause
		}
		c.log.Error("the "+c.name+" ended; traffic goes on, and it is started again", "error", err, "in", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// once runs the process to its end and tells whether it became ready; the end of ctx sends it SIGTERM, and
// SIGKILL after childGrace.
func (c child) once(ctx context.Context) (ready bool, err error) {
	cmd := exec.CommandContext(ctx, c.path, c.args...)
	// A process group of its own: Ctrl-C in a terminal is for this process, which ends the child in its turn.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = childGrace
	stdout, outErr := cmd.StdoutPipe()
	stderr, errErr := cmd.StderrPipe()
	if err := errors.Join(outErr, errErr); err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	if c.started != nil {
		c.started(cmd.Process.Pid)
	}
	last := make(chan string, 1)
	go func() { last <- forwardLog(stderr, c.log.With("part", c.name)) }()
	for s := bufio.NewScanner(stdout); s.Scan(); {
		if s.Text() == DaemonReady {
			ready = true
			if c.ready != nil {
				c.ready()
			}
		}
	}
	word := <-last
	err = cmd.Wait()
	switch {
	case word != "":
		err = errors.New(word)
	case err == nil:
		err = errors.New("exit status 0")
	}
	return ready, err
}

// maxLogLine bounds a line of a child's log, in bytes.
const maxLogLine = 64 << 10

// forwardLog logs what a child writes, line by line, until it closes its end. A line that is a record of
// slog's JSON handler keeps its level, message and attributes; any other is a message as it is, but for
// the program's last word, which is returned.
func forwardLog(r io.Reader, log *slog.Logger) (last string) {
	lines := bufio.NewReaderSize(r, maxLogLine)
	for {
		line, err := lines.ReadSlice('\n')
		if word, ok := strings.CutPrefix(string(line), lastWord); ok {
			last = strings.TrimSpace(word)
		} else if len(line) > 0 {
			level, message, attrs := parseRecord(line)
			log.LogAttrs(context.Background(), level, message, attrs...)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return last
		}
	}
}
