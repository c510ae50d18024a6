// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// After the idle timeout without packets the pod is gone, and the next SYN wakes the service.
func TestIdleServiceSleeps(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "hello", idle: 1})
	address := l.address(t, "hello")
	for i := range 2 {
		begin := u.now()
		e2e.MustAsk(t, l.Client(), address)
		u.await(t, begin, "sleep", func(e status.Event) bool {
			return e.Kind == status.EventState && e.Service == "default/hello" && e.State == "Cold"
		})
		s := l.service(t, "hello")
		if s.Service.Status.Replicas != 0 || s.Service.Status.State != "Cold" || s.Service.Status.LatestRequest == nil {
			t.Errorf("asleep: %+v", s)
		}
		if w := l.wakes(t, "hello"); len(w) != i+1 || w[i].Result != lifecycle.ResultWarm {
			t.Errorf("wakes: %+v, want %d", w, i+1)
		}
	}
}

// Forged SYNs go on that are more frequent than the idle timeout and than handshakes end. A service sleeps all the
// same, with wakeProof Auto after one wake in vain at most, and genuine clients are served.
func TestForgedSYNsKeepNoServiceAwake(t *testing.T) {
	const pause = 200 * time.Millisecond
	l := newLab(t, 3)
	u := l.start(t, service{name: "auto", idle: 2}, service{name: "always", idle: 2, more: "wakeProof: Always"})
	auto, always := l.address(t, "auto"), l.address(t, "always")
	forged := l.flood(t, l.Clients[1], netip.MustParseAddrPort(auto), pause)
	others := l.flood(t, l.Clients[2], netip.MustParseAddrPort(always), pause)
	// sleeps waits until a service has fallen asleep so often, and checks that it stays asleep with so many wakes.
	sleeps := func(name string, times, wakes int) {
		t.Helper()
		u.await(t, 0, "sleep of "+name, func(e status.Event) bool {
			if e.Kind == status.EventState && string(e.Service) == "default/"+name && e.State == "Cold" {
				times--
			}
			return times == 0
		})
		forged.await(t, int64(3*time.Second/pause))
		if w := l.wakes(t, name); len(w) != wakes {
			t.Errorf("%s: %d wakes, want %d: %+v", name, len(w), wakes, w)
		}
	}
	e2e.MustAsk(t, l.Client(), always)
	sleeps("auto", 1, 1)
	sleeps("always", 1, 1)
	e2e.MustAsk(t, l.Client(), auto)
	e2e.MustAsk(t, l.Client(), always)
	sleeps("auto", 3, 3)
	sleeps("always", 2, 2)
	e2e.MustAsk(t, l.Client(), auto)
	others.stop()
}

// A connection that sends something now and then keeps the service awake. One that is only open does not, and is told
// that it has ended.
func TestPacketsKeepAServiceAwakeAndSilenceDoesNot(t *testing.T) {
	l := newLab(t, 1)
	s := lines("lines")
	s.idle = 3
	u := l.start(t, s)
	k := e2e.MustConverse(t, l.Client(), l.address(t, "lines"))
	begin := u.now()
	for until := time.Now().Add(4500 * time.Millisecond); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		k.MustEcho(t, "still here")
	}
	if n := len(l.wakes(t, "lines")); n != 1 {
		t.Errorf("%d wakes, want 1", n)
	}
	u.await(t, begin, "sleep", func(e status.Event) bool {
		return e.Kind == status.EventState &&
			e.State == "Cold"
	})
	if err := k.SetReadDeadline(time.Now().Add(e2e.Patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := k.Reader.ReadByte(); err == nil {
		t.Errorf("the silent connection still reads %q", n)
	} else if timeout, ok := err.(interface{ Timeout() bool }); ok && timeout.Timeout() {
		t.Error("the silent connection is not closed")
	}
	l.untilNoFlows(t, "lines")
}

// The pod that got its SIGTERM receives no new flow, while its open connection goes on until it ends.
func TestSYNDuringASleepIsAnsweredByTheNextPod(t *testing.T) {
	l := newLab(t, 1)
	s := lines("lines")
	s.env["STOP_DELAY"] = "4s" // long enough to be observed
	u := l.start(t, s)
	address := l.address(t, "lines")
	old := e2e.MustConverse(t, l.Client(), address)
	begin := u.now()
	slept := make(chan error, 1)
	go func() {
		_, err := l.wangell("sleep", "lines")
		slept <- err
	}()
	l.until(t, "lines", "stopping", func(s status.Status) bool {
		return len(s.Pods) == 1 &&
			s.Pods[0].State == "stopping"
	})
	next := make(chan *e2e.Conversation, 1)
	failed := make(chan error, 1)
	go func() {
		c, err := e2e.Dial(l.Client().Dialer(), address)
		if err != nil {
			failed <- err
			return
		}
		k, err := e2e.Greeted(c)
		if err != nil {
			failed <- err
			return
		}
		next <- k
	}()
	old.MustEcho(t, "not yet gone")
	select {
	case err := <-failed:
		t.Fatalf("the client that came during the sleep: %v", err)
	case k := <-next:
		defer k.Close()
		if k.Greeting.Instance == old.Greeting.Instance {
			t.Error("the pod that was asked to stop got a new flow")
		}
		k.MustEcho(t, "hello")
	case <-time.After(e2e.Patience):
		t.Fatal("the client that came during the sleep is not answered")
	}
	if err := <-slept; err != nil {
		t.Error(err)
	}
	u.await(t, begin, "the second wake", reports(status.SeverityInfo, "wakes:"))
	if s := l.until(t, "lines", "warm",
		func(s status.Status) bool { return s.Service.Status.State == "Warm" }); s.Service.Status.Replicas != 1 {
		t.Errorf("afterwards: %+v", s)
	}
}
