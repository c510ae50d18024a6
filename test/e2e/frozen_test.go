// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// freezing is a service whose pods are frozen after a second.
func freezing(s service, more string) service {
	s.more = "sleep: {freezeAfter: 1s" + more + "}"
	return s
}

// untilFrozen waits until a service freezes after a point in the events of up.
func (u *up) untilFrozen(t *testing.T, since int, name string) {
	t.Helper()
	u.await(t, since, "freezing of "+name, func(e status.Event) bool {
		return e.Kind == status.EventState && string(e.Service) == "default/"+name && e.State == "Frozen"
	})
}

func TestIdleServiceFreezesAndAPacketThawsIt(t *testing.T) {
	l := newLab(t, 1)
	brief := freezing(service{name: "brief", idle: 8}, ", reclaim: false, freezeWhenBusy: true")
	u := l.start(t, freezing(lines("lines"), ""), brief)
	address := l.address(t, "lines")
	k := e2e.MustConverse(t, l.Client(), address)
	u.untilFrozen(t, 0, "lines")
	s := l.until(t, "lines", "freezing", isState("Frozen"))
	pod := s.Pods[0]
	if pod.State != "frozen" || pod.Frozen == nil || pod.Frozen.ResidentBytes == 0 {
		t.Errorf("the pod of a frozen service: %+v", pod)
	}
	if out := l.must(t, "why", "lines"); !strings.Contains(out, "It is frozen") {
		t.Errorf("why: %s", out)
	}
	if out := l.must(t, "ps"); !strings.Contains(out, "Frozen") {
		t.Errorf("ps: %s", out)
	}

	for _, use := range []struct {
		what string
		do   func()
	}{
		{"data of an open connection", func() { k.MustEcho(t, "after a while") }},
		{"a new connection", func() {
			other := e2e.MustConverse(t, l.Client(), address)
			other.MustEcho(t, "hello")
			if err := other.End(); err != nil {
				t.Error(err)
			}
		}},
		{"a command", func() {
			cmd := l.Node.Command(t.Context(), program, "--run-dir", l.run, "exec", "-e", "MODE=exit", "lines", "--", "/server")
			if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no configuration") {
				t.Errorf("exec in a frozen pod: %v: %s", err, out)
			}
		}},
		{"data after the daemon was killed", func() {
			l.killOne(t, daemonProcess...)
			k.MustEcho(t, "again")
		}},
		{"data just before the daemon was killed", func() { // which has hardly told anybody of the thaw
			k.MustEcho(t, "once more")
			l.killOne(t, daemonProcess...)
		}},
	} {
		begin := u.now()
		use.do()
		u.untilFrozen(t, begin, "lines")
		if pods := l.service(t, "lines").Pods; len(pods) != 1 || pods[0].ID != pod.ID {
			t.Errorf("after %s another pod serves: %+v", use.what, pods)
		}
	}

	// A frozen pod ends by its signal, long before the end of its grace period.
	l.must(t, "sleep", "lines")
	l.untilAsleep(t, "lines")

	e2e.MustAsk(t, l.Client(), l.address(t, "brief"))
	u.untilFrozen(t, 0, "brief")
	l.until(t, "brief", "being stopped", isState("Cold"))
}

// Down leaves nothing of frozen pods, which the lab checks, nor of the swap that has their memory.
func TestDownEndsFrozenPods(t *testing.T) {
	l := newLab(t, 1)
	u := l.startWith(t, manifest(freezing(lines("lines"), "")), "-f", "-", "--zram", "64Mi")
	k := e2e.MustConverse(t, l.Client(), l.address(t, "lines"))
	u.untilFrozen(t, 0, "lines")
	l.until(t, "lines", "swapped", func(s status.Status) bool {
		return len(s.Pods) == 1 && s.Pods[0].Frozen != nil && s.Pods[0].Frozen.SwappedBytes > 0
	})
	if err := u.stop(); err != nil {
		t.Error(err)
	}
	if line, err := k.Reader.ReadString('\n'); err == nil {
		t.Errorf("the connection goes on: %q", line)
	}
	if _, err := os.Stat(filepath.Join(l.state, "zram.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the swap is left: %v", err)
	}
}

// A daemon that does not come back lets no client of a frozen service wait for it.
func TestFrozenPodRunsWhileThereIsNoDaemon(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, freezing(lines("lines"), ""))
	k := e2e.MustConverse(t, l.Client(), l.address(t, "lines"))
	u.untilFrozen(t, 0, "lines")
	l.killOne(t, daemonProcess...) // before it can hear of what is sent
	heard := make(chan error, 1)
	go func() {
		line, err := k.Say("is nobody there?")
		if err == nil && line != "is nobody there?\n" {
			err = errors.New("heard " + line)
		}
		heard <- err
	}()
	var err error
	for waits := true; waits; {
		for _, p := range l.processes(daemonProcess...) { // each is started later than the one before
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		select {
		case err = <-heard:
			waits = false
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err != nil {
		t.Error(err)
	}
	begin := u.now()
	l.until(t, "lines", "warm", isState("Warm"))
	u.untilFrozen(t, begin, "lines")
	k.MustEcho(t, "after the next daemon has come")
}
