// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"wangell.loutres.me/internal/base/process"
)

// Limits of lasting programs.
const (
	ownAnswer       = 30 * time.Second       // for its first answer
	ownStop         = 10 * time.Second       // between SIGTERM and SIGKILL
	ownFirstPause   = 100 * time.Millisecond // before a restart; doubles up to ownLongestPause
	ownLongestPause = 2 * time.Second
	ownStable       = 10 * time.Second // after running for this long, the pause is the first one again
	ownLogLimit     = 10 << 20         // bytes; a longer log is emptied at the next start
)

// ownPoll is the interval at which the socket of a starting program is tried.
const ownPoll = 10 * time.Millisecond

// lasting is a program of this instance that outlives this process: the next process finds and uses it. It has a
// process group of its own, and is restarted whenever it exits.
type lasting struct {
	name string   // for messages
	argv []string // with an argument that is unique to this instance: key
	key  string
	pid  string // file
	logs string // file
	// before is called before each start; optional.
	before func(context.Context)
	// answers returns nil if the program is ready.
	answers func(context.Context) error
	// effect of an exit, for a message.
	effect string
	log    *slog.Logger

	found      bool // started by an earlier process
	supervisor process.Supervisor
	cancel     context.CancelFunc // of the supervisor
	done       chan struct{}      // closed when the supervisor has returned
}

// begin returns once the program answers: the one of an earlier process, or a new one.
func (l *lasting) begin(ctx context.Context) error {
	p, err := l.find(ctx)
	if err != nil {
		return err
	}
	if l.found = p != nil; !l.found {
		if p, err = l.start(ctx); err != nil {
			return err
		}
	}
	l.supervisor = process.Supervisor{
		Start: l.start, FirstPause: ownFirstPause, LongestPause: ownLongestPause, Stable: ownStable,
		Exited: func(p *process.Process, pause time.Duration) {
			l.log.Error(fmt.Sprintf("%s has exited; it is restarted%s", l.name, l.effect), "pid", p.PID(), "in", pause)
		},
		Failed: func(err error, pause time.Duration) {
			l.log.Error(l.name+" cannot be restarted", "error", err, "next try in", pause)
		},
	}
	supervised, cancel := context.WithCancel(context.Background())
	l.cancel, l.done = cancel, make(chan struct{})
	go func() {
		defer close(l.done)
		l.supervisor.Run(supervised, p)
	}()
	return nil
}

// release ends the supervision and leaves the program running.
func (l *lasting) release() {
	if p := l.unwatch(); p != nil {
		p.Close()
	}
}

// end stops the program if it runs.
func (l *lasting) end() error {
	if p := l.unwatch(); p != nil {
		if err := p.Stop(ownStop); err != nil {
			return fmt.Errorf("stop own %s: %w", l.name, err)
		}
	}
	return nil
}

// unwatch ends the supervision and returns the process; nil if there is none.
func (l *lasting) unwatch() *process.Process {
	l.cancel()
	<-l.done
	return l.supervisor.Process()
}

// find returns the program of an earlier process; nil if there is none. A program that runs but does not answer is
// stopped: two cannot share a folder.
func (l *lasting) find(ctx context.Context) (*process.Process, error) {
	text, err := os.ReadFile(l.pid)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, nil // half written by a process that was killed before it had started the program
	}
	p, err := process.Open(pid)
	if err != nil {
		return nil, nil
	}
	// Read while the pidfd is open, so that the number cannot mean another process.
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(command), l.key) {
		p.Close()
		return nil, nil
	}
	if err := l.awaitAnswer(ctx, p); err != nil {
		l.log.Warn("own "+l.name+" does not answer; it is restarted", "pid", pid, "error", err)
		if err := p.Stop(ownStop); err != nil {
			return nil, fmt.Errorf("stop own %s that does not answer: %w", l.name, err)
		}
		return nil, nil
	}
	return p, nil
}

// start starts the program and returns once it answers.
func (l *lasting) start(ctx context.Context) (*process.Process, error) {
	if fileSize(l.logs) > ownLogLimit {
		_ = os.Truncate(l.logs, 0)
	}
	log, err := os.OpenFile(l.logs, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return nil, fmt.Errorf("start own %s: %w", l.name, err)
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("start own %s: %w", l.name, err)
	}
	if l.before != nil {
		l.before(ctx)
	}
	cmd := exec.Command(l.argv[0], l.argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p, err := process.Start(cmd, nil)
	if err != nil {
		return nil, fmt.Errorf("start own %s: %w", l.name, err)
	}
	err = os.WriteFile(l.pid, []byte(strconv.Itoa(p.PID())+"\n"), 0o600)
	if err == nil {
		err = l.awaitAnswer(ctx, p)
	}
	if err != nil {
		err = fmt.Errorf("start own %s: %w; %s ends with: %s", l.name, err, l.logs, LastLine(l.logs, begin))
		return nil, errors.Join(err, p.Stop(ownStop))
	}
	return p, nil
}

// awaitAnswer returns once the program answers, or with an error if p exits or ownAnswer passes before.
func (l *lasting) awaitAnswer(ctx context.Context, p *process.Process) error {
	ctx, cancel := context.WithTimeout(ctx, ownAnswer)
	defer cancel()
	for {
		err := l.answers(ctx)
		if err == nil {
			return nil
		}
		// The kernel has no event for a Unix socket that begins to listen; programs take about 100 ms.
		select {
		case <-p.Ended():
			return errors.New("it exited")
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-time.After(ownPoll):
		}
	}
}
