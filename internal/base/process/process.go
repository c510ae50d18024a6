// SPDX-License-Identifier: Apache-2.0

// Package process starts other programs, stops them, and restarts them when they exit.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a running process, a child of this one or not. It is held by a pidfd (pidfd_open(2)), so a
// signal never reaches another process that was given the same number later.
type Process struct {
	pid   int
	fd    *os.File
	ended chan struct{}
	err   error // set before ended is closed
}

// Start starts cmd as a child. wait reaps it and returns the reason of its exit; nil means cmd.Wait. A caller that
// reads the child's pipes gives a wait that drains them first, as required by exec.Cmd.StdoutPipe.
func Start(cmd *exec.Cmd, wait func() error) (*Process, error) {
	if wait == nil {
		wait = cmd.Wait
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	// The child has not been reaped, so its number still means it, even if it has exited already.
	p, err := open(cmd.Process.Pid)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), wait())
	}
	go func() {
		p.err = wait()
		close(p.ended)
	}()
	return p, nil
}

// StartBound is Start for a child that is killed when this process ends, for whatever reason. The kernel sends the
// signal when the thread that started the child ends (PR_SET_PDEATHSIG), and Go ends threads, for example those in
// which containerd's library has mounted something. So this thread is kept until the child has exited.
func StartBound(cmd *exec.Cmd) (p *Process, err error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p, err = Start(cmd, nil)
		close(started)
		if err == nil {
			<-p.ended
		}
	}()
	<-started
	return p, err
}

// Open returns a process that this one did not start. The number may have been given to a new process before the
// call: callers check afterwards that it is the one they mean, for example in /proc/PID/cmdline. The error wraps
// unix.ESRCH if there is no process with that number.
func Open(pid int) (*Process, error) {
	p, err := open(pid)
	if err != nil {
		return nil, err
	}
	raw, err := p.fd.SyscallConn()
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	go func() {
		// A pidfd becomes readable when its process exits. Read waits in the runtime's poller until then or until Close.
		err := raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n == 1
		})
		if err == nil {
			close(p.ended)
		}
	}()
	return p, nil
}

func open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &Process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{})}, nil
}

// PID is the number of the process.
func (p *Process) PID() int { return p.pid }

// Ended is closed once the process has exited, and been reaped if it is a child. After Close it may stay open.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err is the reason of the exit of a child, as its wait function returned it. It is nil for a process from Open, and
// must not be called before Ended is closed.
func (p *Process) Err() error { return p.err }

// Close releases the pidfd. The process goes on.
func (p *Process) Close() { _ = p.fd.Close() }

// Signal sends a signal. A process that has exited is not an error.
func (p *Process) Signal(s unix.Signal) error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

// Wait waits for the exit, for at most the timeout, and reports whether the process has exited. The error is that of
// ctx.
func (p *Process) Wait(ctx context.Context, timeout time.Duration) (exited bool, err error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C:
		return false, nil
	}
}

// Stop sends SIGTERM, after the grace SIGKILL, waits for the exit, and closes p.
func (p *Process) Stop(grace time.Duration) error {
	defer p.Close()
	if err := p.Signal(unix.SIGTERM); err != nil {
		return fmt.Errorf("stop process %d: %w", p.pid, err)
	}
	if exited, _ := p.Wait(context.Background(), grace); exited {
		return nil
	}
	if err := p.Signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	<-p.ended
	return nil
}
