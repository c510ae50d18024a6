// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/e2e"
)

// attempt is a connection that a client has tried to make.
type attempt struct {
	began time.Time
	by    string // the process that has greeted the client
	err   error
}

// visitors connect every three milliseconds until they are stopped, each until the server has greeted it.
type visitors struct {
	stop     chan struct{}
	group    sync.WaitGroup
	mu       sync.Mutex
	attempts []attempt
}

func (l *lab) visitors(address string) *visitors {
	v := &visitors{stop: make(chan struct{})}
	v.group.Go(func() {
		for {
			select {
			case <-v.stop:
				return
			case <-time.After(3 * time.Millisecond):
				v.group.Go(func() { v.visit(l, address) })
			}
		}
	})
	return v
}

func (v *visitors) visit(l *lab, address string) {
	a := attempt{began: time.Now()}
	k, err := e2e.Converse(l.Client().Dialer(), address)
	if a.err = err; err == nil {
		a.by = k.Greeting.Instance
		k.Close()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.attempts = append(v.attempts, a)
}

// greetedBy counts the clients that were greeted by another process than one.
func (v *visitors) greetedBy(other string) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, a := range v.attempts {
		if a.err == nil && a.by != other {
			n++
		}
	}
	return n
}

// check waits for all clients. None may have been refused, and none that came after a time may have failed.
func (v *visitors) check(t *testing.T, ended time.Time) {
	t.Helper()
	close(v.stop)
	v.group.Wait()
	refused, cut, longest := 0, 0, time.Duration(0)
	for _, a := range v.attempts {
		switch {
		case a.err == nil:
		case errors.Is(a.err, syscall.ECONNREFUSED):
			refused++
			longest = max(longest, a.began.Sub(ended))
		case a.began.Before(ended):
			cut++ // its connection was open
		default:
			t.Errorf("a client that came %v after the end of the process: %v", a.began.Sub(ended), a.err)
		}
	}
	t.Logf("of %d clients %d were refused (the last came %v after the end), and %d were cut off with the process",
		len(v.attempts), refused, longest, cut)
	if refused > 0 {
		t.Errorf("%d clients were refused", refused)
	}
}

// ends waits for the end of a process and returns a time just after it.
func ends(t *testing.T, pid int, kill func() error) time.Time {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	defer unix.Close(fd)
	if err := kill(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(e2e.Patience)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		if n == 1 {
			return time.Now()
		}
		if err != nil && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			t.Fatalf("process %d does not end: %v", pid, err)
		}
	}
}

// Clients connect all the time while the only process of a service is killed, or the shim that looks after it. The gate
// learns of its end from the kernel, before any program does: they wait for the next process.
func TestNoClientIsRefusedWhenItsPodIsKilled(t *testing.T) {
	for _, what := range []string{"process", "shim"} {
		t.Run(what, func(t *testing.T) {
			l := newLab(t, 1)
			l.start(t, lines("hello"))
			address := l.address(t, "hello")
			before := e2e.MustConverse(t, l.Client(), address).Greeting.Instance
			shims := l.processes(shimProcess...)
			if len(shims) != 1 {
				t.Fatalf("shims: %v", shims)
			}
			pids := children(shims[0].pid)
			if len(pids) != 1 {
				t.Fatalf("children of the shim: %v", pids)
			}
			l.until(t, "hello", "warm", isState("Warm"))
			v := l.visitors(address)
			time.Sleep(200 * time.Millisecond) // so that clients come at any point of what follows
			victim := pids[0]
			if what == "shim" {
				victim = shims[0].pid
			}
			ended := ends(t, pids[0], func() error { return syscall.Kill(victim, syscall.SIGKILL) })
			e2e.Eventually(t, "the next process answers", func() (bool, string) {
				n := v.greetedBy(before)
				return n >= 100, fmt.Sprint(n)
			})
			v.check(t, ended)
		})
	}
}
