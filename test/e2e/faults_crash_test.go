// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/controller"
)

// slow is a service that takes a while to wake.
func slow(name string, delay time.Duration) service {
	return service{name: name, env: map[string]string{"LISTEN_DELAY": delay.String()}}
}

// answerLater asks in the background.
func (l *lab) answerLater(address string) <-chan error {
	answered := make(chan error, 1)
	go func() {
		_, err := ask(l.Client(), address)
		answered <- err
	}()
	return answered
}

// TestContainerdKilledDuringWake at several moments of it: it is started again, and the client that waits is answered.
func TestContainerdKilledDuringWake(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "hello"}, lines("warm"))
	address := l.address(t, "hello")
	k := newTalk(t, l.Client(), l.address(t, "warm"))
	for _, after := range []time.Duration{0, 5, 20, 40} {
		answered := l.answerLater(address)
		time.Sleep(after * time.Millisecond) // some moment of the wake
		killed := time.Now()
		l.killOne(t, containerdProcess...)
		if err := <-answered; err != nil {
			t.Errorf("the client that came %d ms before containerd was killed is not answered %v later: %v; %+v",
				after, time.Since(killed), err, l.service(t, "hello"))
		}
		k.mustEcho(t, "not disturbed")
		l.containerdIsBack(t)
		l.until(t, "hello", fmt.Sprintf("warm, after containerd was killed %d ms after the request,", after), isState("Warm"))
		l.sleep(t, "hello")
	}
	mustAsk(t, l.Client(), address)
	if said := u.said(); !strings.Contains(said, "containerd has exited; it is restarted") {
		t.Error("the log does not report that containerd exited")
	}
}

func (l *lab) containerdIsBack(t *testing.T) {
	t.Helper()
	eventually(t, "containerd is back", func() bool { return len(l.processes(containerdProcess...)) == 1 })
}

// TestContainerdKilledBeforeItAnswers: it has had the process started and ends before it can say so. The pod, to which
// clients are connected already, goes on.
func TestContainerdKilledBeforeItAnswers(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, lines("hello"))
	address := l.address(t, "hello")
	k := l.talkWithContainerdHalted(t, address)
	for tries := 1; k == nil; tries++ {
		if tries == 100 {
			t.Fatal("runc was never seen at work")
		}
		l.sleep(t, "hello")
		k = l.talkWithContainerdHalted(t, address)
	}
	l.until(t, "hello", "warm", isState("Warm"))
	l.killOne(t, containerdProcess...)
	k.mustEcho(t, "while there is no containerd")
	l.containerdIsBack(t)
	k.mustEcho(t, "with the next containerd")
	if again := newTalk(t, l.Client(), address); again.greeting.Instance != k.greeting.Instance {
		t.Errorf("another process answers: %+v, before %+v", again.greeting, k.greeting)
	}
	l.sleep(t, "hello")
	if _, err := k.r.ReadByte(); err == nil {
		t.Error("the pod was put to sleep, and its connection is not closed")
	}
	newTalk(t, l.Client(), address)
}

// talkWithContainerdHalted wakes a service and halts containerd while runc starts the process, which takes some milliseconds.
// It returns nil if runc was not seen in time.
func (l *lab) talkWithContainerdHalted(t *testing.T, address string) *talk {
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
	k := newTalk(t, l.Client(), address)
	close(connected)
	if !<-halted {
		return nil
	}
	return k
}

// children are the processes whose parent is pid.
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

// TestCrashWhileWarm: the process of a warm service is killed, or its shim is, and the next request starts another one.
func TestCrashWhileWarm(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "hello"}, lines("other"))
	address := l.address(t, "hello")
	k := newTalk(t, l.Client(), l.address(t, "other"))
	otherShims := l.processes(shimProcess...)
	for _, what := range []string{"process", "shim"} {
		begin := u.now()
		before := mustAsk(t, l.Client(), address)
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
		e := u.await(t, begin, "the crash of the "+what, reports(controller.SeverityError, "crashed"))
		// A process can answer before containerd has told that it runs; then it is the start that fails.
		if !strings.Contains(e.Text, "signal 9") && !strings.Contains(e.Text, "code") && !strings.Contains(e.Text, "its start failed although it listened") {
			t.Errorf("the crash of the %s: %q", what, e.Text)
		}
		if s := l.until(t, "hello", "its end", func(s controller.Status) bool { return len(s.Pods) == 0 }); s.Service.Status.Message == "" {
			t.Errorf("after the crash of the %s: %+v", what, s)
		}
		if after := mustAsk(t, l.Client(), address); after.Instance == before.Instance {
			t.Errorf("after the crash of the %s: the same process answers", what)
		}
		l.sleep(t, "hello")
		k.mustEcho(t, "not disturbed")
	}
}

// TestDaemonKilledUnderLoad: traffic of a warm service goes on, no request fails, a new daemon is started, and a client of
// a cold service that came meanwhile is answered.
func TestDaemonKilledUnderLoad(t *testing.T) {
	l := newLab(t, 2)
	u := l.start(t, service{name: "warm"}, service{name: "cold"}, slow("slow", 3*time.Second)) // it is to be seen while it wakes
	cold, slow, warm := l.address(t, "cold"), l.address(t, "slow"), "http://"+l.address(t, "warm")+"/"
	load := l.load(t, warm, newConnections, keptConnections)
	wrkDone := make(chan struct{})
	go func() {
		defer close(wrkDone)
		wrk(t, l.Clients[1], 10, "4s", warm)
	}()
	for range 3 {
		begin := u.now()
		parked := l.answerLater(slow)
		l.until(t, "slow", "waking", isState("Waking"))
		l.killOne(t, daemonProcess...)
		answered := l.answerLater(cold) // while no daemon is there to hear of it
		load.goesOn(t)
		u.await(t, begin, "the next daemon", func(e controller.Event) bool { return e.Kind == controller.EventDaemon && e.Text == "connected" })
		for what, err := range map[string]error{"while there is no daemon": <-answered, "before it was killed": <-parked} {
			if err != nil {
				t.Errorf("the client that came %s: %v", what, err)
			}
		}
		for _, name := range []string{"cold", "slow"} {
			l.until(t, name, "warm", isState("Warm"))
			l.sleep(t, name)
		}
		load.goesOn(t)
	}
	<-wrkDone
	load.stop(t)
	l.untilNoFlows(t, "warm")
}

// TestUpKilledUnderLoad: traffic of a warm service goes on through the end of everything in user space, and through the
// adoption by the next instance.
func TestUpKilledUnderLoad(t *testing.T) {
	l := newLab(t, 2)
	u := l.start(t, service{name: "hello"}, service{name: "cold"})
	load := l.load(t, "http://"+l.address(t, "hello")+"/", newConnections, keptConnections)
	cold := l.address(t, "cold")
	for range 2 {
		if err := u.kill(); err != nil {
			t.Fatal(err)
		}
		load.goesOn(t)
		answered := l.answerLater(cold)
		u = l.start(t, service{name: "hello"}, service{name: "cold"})
		if err := <-answered; err != nil {
			t.Errorf("the client that came while there was no instance: %v", err)
		}
		load.goesOn(t)
		l.until(t, "cold", "warm", isState("Warm"))
		l.sleep(t, "cold")
	}
	load.stop(t)
	l.untilNoFlows(t, "hello")
}

// TestUpKilledDuringWake: the clients that wait are answered by the next instance, whether the pod that was being started
// is there yet or not.
func TestUpKilledDuringWake(t *testing.T) {
	l := newLab(t, 1)
	specs := []service{slow("slow", 3*time.Second), {name: "hello"}} // the first is to be seen while it wakes
	u := l.start(t, specs...)
	slow, hello := l.address(t, "slow"), l.address(t, "hello")
	waiting := []<-chan error{l.answerLater(slow)}
	l.until(t, "slow", "its process", hasPod("starting"))
	waiting = append(waiting, l.answerLater(hello)) // and one whose wake has hardly begun
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

// TestAdoptionOfAnotherManifest: what runs with a spec that is no longer wanted is stopped, what is still wanted stays.
func TestAdoptionOfAnotherManifest(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, version("same", "1"), version("changed", "1"), version("removed", "1"))
	before := map[string]answer{}
	for _, name := range []string{"same", "changed", "removed"} {
		before[name] = mustAsk(t, l.Client(), l.address(t, name))
	}
	if err := u.kill(); err != nil {
		t.Fatal(err)
	}
	l.start(t, version("same", "1"), version("changed", "2"))
	if a := mustAsk(t, l.Client(), l.address(t, "same")); a.Instance != before["same"].Instance {
		t.Error("the pod of a service that did not change was replaced")
	}
	if a := mustAsk(t, l.Client(), l.address(t, "changed")); a.Version != "2" {
		t.Errorf("the service that changed: %+v", a)
	}
	eventually(t, "two pods", func() bool { return len(l.processes(shimProcess...)) == 2 })
}

// TestContainerdKilledWhileGoingDown: the pod goes all the same.
func TestContainerdKilledWhileGoingDown(t *testing.T) {
	l := newLab(t, 1)
	s := service{name: "hello", env: map[string]string{"STOP_DELAY": "5s"}} // it is to be seen while it goes down
	l.start(t, s)
	address := l.address(t, "hello")
	before := mustAsk(t, l.Client(), address)
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
	if after := mustAsk(t, l.Client(), address); after.Instance == before.Instance {
		t.Error("the pod that was asked to stop answers")
	}
}
