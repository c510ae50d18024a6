// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
)

// slow is a service that listens only after a delay.
func slow(name string, delay time.Duration) service {
	return service{name: name, env: map[string]string{"LISTEN_DELAY": delay.String()}}
}

// containerd is killed at several points of a wake. It is restarted, and the waiting client is answered.
func TestClientIsAnsweredWhenContainerdIsKilledDuringTheWake(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "hello"}, lines("warm"))
	address := l.address(t, "hello")
	k := e2e.MustConverse(t, l.Client(), l.address(t, "warm"))
	for _, after := range []time.Duration{0, 5, 20, 40} {
		answered := e2e.AskLater(l.Client(), address)
		time.Sleep(after * time.Millisecond) // some point of the wake
		killed := time.Now()
		l.killOne(t, containerdProcess...)
		if err := <-answered; err != nil {
			t.Errorf("the client that came %d ms before containerd was killed is not answered %v later: %v; %+v",
				after, time.Since(killed), err, l.service(t, "hello"))
		}
		k.MustEcho(t, "still served")
		l.containerdIsBack(t)
		l.until(t, "hello", fmt.Sprintf("warm, after containerd was killed %d ms after the request,", after), isState("Warm"))
		l.sleep(t, "hello")
	}
	e2e.MustAsk(t, l.Client(), address)
	if said := u.said(); !strings.Contains(said, "containerd has exited; it is restarted") {
		t.Error("the log does not report that containerd exited")
	}
}

func (l *lab) containerdIsBack(t *testing.T) {
	t.Helper()
	eventually(t, "containerd is back", func() bool { return len(l.processes(containerdProcess...)) == 1 })
}

// containerd has started the process and exits before it can report that. The pod, to which clients are connected
// already, keeps running.
func TestPodSurvivesWhenContainerdIsKilledBeforeItAnswers(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("hello"))
	address := l.address(t, "hello")
	k := l.converseWithContainerdStopped(t, address)
	for tries := 1; k == nil; tries++ {
		if tries == 100 {
			t.Fatal("runc was never seen at work")
		}
		l.sleep(t, "hello")
		k = l.converseWithContainerdStopped(t, address)
	}
	l.until(t, "hello", "warm", isState("Warm"))
	l.killOne(t, containerdProcess...)
	k.MustEcho(t, "while there is no containerd")
	l.containerdIsBack(t)
	k.MustEcho(t, "with the next containerd")
	if again := e2e.MustConverse(t, l.Client(), address); again.Greeting.Instance != k.Greeting.Instance {
		t.Errorf("another process answers: %+v, before %+v", again.Greeting, k.Greeting)
	}
	l.sleep(t, "hello")
	if _, err := k.Reader.ReadByte(); err == nil {
		t.Error("the service sleeps, but the connection is not closed")
	}
	e2e.MustConverse(t, l.Client(), address)
}

// converseWithContainerdStopped wakes a service and stops containerd with SIGSTOP while runc starts the process, which
// takes some milliseconds. It returns nil if runc was not seen in time.
func (l *lab) converseWithContainerdStopped(t *testing.T, address string) *e2e.Conversation {
	t.Helper()
	pid := l.processes(containerdProcess...)[0].pid
	halted, connected := make(chan bool, 1), make(chan struct{})
	go func() {
		for len(l.processes("runc ", " start ")) == 0 {
			select {
			case <-connected:
				halted <- false
				return
			default:
			}
		}
		halted <- syscall.Kill(pid, syscall.SIGSTOP) == nil
	}()
	k := e2e.MustConverse(t, l.Client(), address)
	close(connected)
	if !<-halted {
		return nil
	}
	return k
}

// children returns the child processes of pid.
func children(pid int) (found []int) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	for _, field := range strings.Fields(string(data)) {
		var child int
		if _, err := fmt.Sscan(field, &child); err == nil {
			found = append(found, child)
		}
	}
	return found
}

// The process of a warm service is killed, or its shim is, and the next request starts another one.
func TestNextRequestStartsAnotherPodAfterACrash(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "hello"}, lines("other"))
	address := l.address(t, "hello")
	k := e2e.MustConverse(t, l.Client(), l.address(t, "other"))
	otherShims := l.processes(shimProcess...)
	for _, what := range []string{"process", "shim"} {
		begin := u.now()
		before := e2e.MustAsk(t, l.Client(), address)
		for _, shim := range l.processes(shimProcess...) {
			if len(otherShims) == 1 && shim.pid == otherShims[0].pid {
				continue
			}
			pid := shim.pid
			if what == "process" {
				pids := children(shim.pid)
				if len(pids) != 1 {
					t.Fatalf("children of the shim: %v", pids)
				}
				pid = pids[0]
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		e := u.await(t, begin, "the crash of the "+what, reports(status.SeverityError, "crashed"))
		// A process may answer before containerd reports that it runs. Then the start fails.
		if !strings.Contains(e.Text, "signal 9") && !strings.Contains(e.Text, "code") &&
			!strings.Contains(e.Text, "its start failed although it listened") {
			t.Errorf("the crash of the %s: %q", what, e.Text)
		}
		if s := l.until(t, "hello", "its end",
			func(s status.Status) bool { return len(s.Pods) == 0 }); s.Service.Status.Message == "" {
			t.Errorf("after the crash of the %s: %+v", what, s)
		}
		if after := e2e.MustAsk(t, l.Client(), address); after.Instance == before.Instance {
			t.Errorf("after the crash of the %s: the same process answers", what)
		}
		l.sleep(t, "hello")
		k.MustEcho(t, "still served")
	}
}

// Traffic of a warm service goes on, a new daemon is started, and clients of cold services that came meanwhile are
// answered.
func TestKilledDaemonLosesNoRequest(t *testing.T) {
	l := newLab(t, 2)
	// long enough to be observed
	u := l.start(t, service{name: "warm"}, service{name: "cold"}, slow("slow", 3*time.Second))
	cold, slow, warm := l.address(t, "cold"), l.address(t, "slow"), l.address(t, "warm")
	load := l.load(t, warm, newConnections, keptConnections)
	wrkDone := make(chan struct{})
	go func() {
		defer close(wrkDone)
		wrk(t, l.Clients[1], 10, 4*time.Second, warm)
	}()
	for range 3 {
		begin := u.now()
		parked := e2e.AskLater(l.Client(), slow)
		l.until(t, "slow", "waking", isState("Waking"))
		l.killOne(t, daemonProcess...)
		answered := e2e.AskLater(l.Client(), cold) // while there is no daemon
		load.GoesOn(t)
		u.await(t, begin, "the next daemon", func(e status.Event) bool {
			return e.Kind == status.EventDaemon &&
				e.Text == "connected"
		})
		for what, err := range map[string]error{"while there is no daemon": <-answered, "before it was killed": <-parked} {
			if err != nil {
				t.Errorf("the client that came %s: %v", what, err)
			}
		}
		for _, name := range []string{"cold", "slow"} {
			l.until(t, name, "warm", isState("Warm"))
			l.sleep(t, name)
		}
		load.GoesOn(t)
	}
	<-wrkDone
	load.Stop(t)
	l.untilNoFlows(t, "warm")
}

// Traffic of a warm service goes on while all user-space programs are gone, and while the next instance adopts the
// pods.
func TestKilledUpLosesNoRequest(t *testing.T) {
	l := newLab(t, 2)
	u := l.start(t, service{name: "hello"}, service{name: "cold"})
	load := l.load(t, l.address(t, "hello"), newConnections, keptConnections)
	cold := l.address(t, "cold")
	for range 2 {
		if err := u.kill(); err != nil {
			t.Fatal(err)
		}
		load.GoesOn(t)
		answered := e2e.AskLater(l.Client(), cold)
		u = l.start(t, service{name: "hello"}, service{name: "cold"})
		if err := <-answered; err != nil {
			t.Errorf("the client that came while there was no instance: %v", err)
		}
		load.GoesOn(t)
		l.until(t, "cold", "warm", isState("Warm"))
		l.sleep(t, "cold")
	}
	load.Stop(t)
	l.untilNoFlows(t, "hello")
}

// Waiting clients are answered by the next instance, whether or not their pod exists yet.
func TestNextUpFinishesAnInterruptedWake(t *testing.T) {
	l := newLab(t, 1)
	specs := []service{slow("slow", 3*time.Second), {name: "hello"}} // the first wakes slowly enough to be observed
	u := l.start(t, specs...)
	slow, hello := l.address(t, "slow"), l.address(t, "hello")
	waiting := []<-chan error{e2e.AskLater(l.Client(), slow)}
	l.until(t, "slow", "its process", hasPod("starting"))
	waiting = append(waiting, e2e.AskLater(l.Client(), hello)) // and one whose wake has just begun
	if err := u.kill(); err != nil {
		t.Fatal(err)
	}
	l.start(t, specs...)
	for i, answered := range waiting {
		if err := <-answered; err != nil {
			t.Errorf("client %d: %v", i, err)
		}
	}
	for _, name := range []string{"slow", "hello"} {
		s := l.until(t, name, "warm", isState("Warm"))
		l.until(t, name, "one pod", hasPod("serving"))
		if s.Service.Status.Replicas != 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestNextUpKeepsOnlyPodsOfUnchangedServices(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, version("same", "1"), version("changed", "1"), version("removed", "1"))
	before := map[string]e2e.Answer{}
	for _, name := range []string{"same", "changed", "removed"} {
		before[name] = e2e.MustAsk(t, l.Client(), l.address(t, name))
	}
	if err := u.kill(); err != nil {
		t.Fatal(err)
	}
	l.start(t, version("same", "1"), version("changed", "2"))
	if a := e2e.MustAsk(t, l.Client(), l.address(t, "same")); a.Instance != before["same"].Instance {
		t.Error("the pod of a service that did not change was replaced")
	}
	if a := e2e.MustAsk(t, l.Client(), l.address(t, "changed")); a.Version != "2" {
		t.Errorf("the service that changed: %+v", a)
	}
	eventually(t, "two pods", func() bool { return len(l.processes(shimProcess...)) == 2 })
}

func TestPodStopsAlthoughContainerdIsKilledMeanwhile(t *testing.T) {
	l := newLab(t, 1)
	s := service{name: "hello", env: map[string]string{"STOP_DELAY": "3s"}} // long enough to be observed
	l.start(t, s)
	address := l.address(t, "hello")
	before := e2e.MustAsk(t, l.Client(), address)
	slept := make(chan error, 1)
	go func() {
		_, err := l.wangell("sleep", "hello")
		slept <- err
	}()
	l.until(t, "hello", "its end", hasPod("stopping"))
	l.killOne(t, containerdProcess...)
	if err := <-slept; err != nil {
		t.Error(err)
	}
	l.untilAsleep(t, "hello")
	if after := e2e.MustAsk(t, l.Client(), address); after.Instance == before.Instance {
		t.Error("the pod that was asked to stop answers")
	}
}
