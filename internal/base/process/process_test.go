// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// start starts a shell script as a child that ends with the test.
func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(exec.Command("/bin/sh", "-c", script), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Signal(unix.SIGKILL) })
	return p
}

func TestStopSendsSIGTERMThenSIGKILL(t *testing.T) {
	p := start(t, "exec sleep 1000")
	if err := p.Stop(time.Minute); err != nil || !strings.Contains(p.Err().Error(), "terminated") {
		t.Errorf("stop: %v, exit: %v, want it terminated", err, p.Err())
	}
	out, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
	cmd.Stdout = out
	stubborn, err := Start(cmd, nil)
	if err != nil {
		t.Fatal(err)
	}
	for size := int64(0); size == 0; time.Sleep(time.Millisecond) {
		info, err := out.Stat()
		if err != nil {
			t.Fatal(err)
		}
		size = info.Size()
	}
	if err := stubborn.Stop(50 * time.Millisecond); err != nil || !strings.Contains(stubborn.Err().Error(), "killed") {
		t.Errorf("stop: %v, exit: %v, want it killed", err, stubborn.Err())
	}
}

func TestProcessOfAnotherIsWaitedFor(t *testing.T) {
	child := start(t, "exec sleep 1000")
	p, err := Open(child.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if exited, err := p.Wait(context.Background(), 10*time.Millisecond); exited || err != nil {
		t.Fatalf("while it runs: %t, %v", exited, err)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Wait(cancelled, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := child.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if exited, err := p.Wait(context.Background(), time.Minute); !exited || err != nil {
		t.Errorf("after SIGKILL: %t, %v", exited, err)
	}
	<-child.Ended() // it is reaped
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Errorf("signal to a process that has exited: %v", err)
	}
	if _, err := Open(child.PID()); !errors.Is(err, unix.ESRCH) {
		t.Errorf("open a process that has exited: %v, want ESRCH", err)
	}
}

func TestSupervisorRestartsWithGrowingPauses(t *testing.T) {
	var mu sync.Mutex
	var pauses []time.Duration
	note := func(pause time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		pauses = append(pauses, pause)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const ms = time.Millisecond
	starts := 0
	s := &Supervisor{
		FirstPause: ms, LongestPause: 5 * ms, Stable: time.Hour,
		Start: func(context.Context) (*Process, error) {
			starts++
			if starts%2 == 1 {
				return nil, errors.New("not now")
			}
			if starts == 6 {
				defer cancel()
				return start(t, "exec sleep 1000"), nil
			}
			return start(t, "exit 3"), nil
		},
		Exited: func(p *Process, pause time.Duration) {
			if p.Err() == nil || p.Err().Error() != "exit status 3" {
				t.Errorf("exit: %v", p.Err())
			}
			note(pause)
		},
		Failed: func(_ error, pause time.Duration) { note(pause) },
	}
	s.Run(ctx, start(t, "exit 3"))
	want := []time.Duration{ms, 2 * ms, 4 * ms, 5 * ms, 5 * ms, 5 * ms}
	mu.Lock()
	defer mu.Unlock()
	if len(pauses) != len(want) {
		t.Fatalf("pauses %v, want %v", pauses, want)
	}
	for i := range want {
		if pauses[i] != want[i] {
			t.Errorf("pause %d is %v, want %v", i, pauses[i], want[i])
		}
	}
	p := s.Process()
	if p == nil {
		t.Fatal("the last process is not there after Run")
	}
	if err := p.Stop(time.Minute); err != nil {
		t.Error(err)
	}
}

func TestSupervisorStartsAnewWithTheFirstPauseAfterAStableProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	restarts := 0
	s := &Supervisor{
		FirstPause: time.Millisecond, LongestPause: time.Hour, Stable: time.Nanosecond,
		Start: func(context.Context) (*Process, error) {
			if restarts++; restarts == 30 {
				cancel()
			}
			return start(t, "exit 0"), nil
		},
		Exited: func(_ *Process, pause time.Duration) {
			if pause != time.Millisecond {
				t.Errorf("pause %v", pause)
			}
		},
	}
	s.Run(ctx, start(t, "exit 0"))
	if p := s.Process(); p != nil {
		<-p.Ended()
		p.Close()
	}
}
