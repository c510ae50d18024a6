// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/e2e"
)

// process is a process of the instance.
type process struct {
	pid     int
	command string
}

// processes returns the processes of the instance whose command line has all of the parts.
func (l *lab) processes(parts ...string) (found []process) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		data, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue
		}
		p := process{command: strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		matches := strings.Contains(p.command, l.dir)
		for _, part := range parts {
			matches = matches && strings.Contains(p.command, part)
		}
		if matches {
			found = append(found, p)
		}
	}
	// Between fork and exec, a child has its parent's command line.
	all := slices.Clone(found)
	return slices.DeleteFunc(found, func(p process) bool {
		return slices.Contains(all, process{pid: parentOf(p.pid), command: p.command})
	})
}

// parentOf returns the parent of a process; 0 if the process is gone.
func parentOf(pid int) (parent int) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(status), "\nPPid:")
	_, _ = fmt.Sscan(after, &parent)
	return parent
}

// killOne sends SIGKILL to the one process of the instance whose command line has all of the parts.
func (l *lab) killOne(t *testing.T, parts ...string) {
	t.Helper()
	found := l.processes(parts...)
	if len(found) != 1 {
		t.Fatalf("processes of the instance with %q: %+v, want one", parts, found)
	}
	if err := syscall.Kill(found[0].pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill %+v: %v", found[0], err)
	}
}

// The processes of an instance, for killOne.
var (
	daemonProcess     = []string{" daemon ", "--server"}
	containerdProcess = []string{"containerd --config"}
	shimProcess       = []string{"containerd-shim-runc-v2"}
)

// SIGINT, SIGTERM and SIGHUP end an instance with pods and open connections. newLab checks what is left.
func TestSignalEndsTheInstanceAndLeavesNothing(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			l := newLab(t, 1)
			u := l.start(t, lines("a"), service{name: "b"}, service{name: "c"})
			e2e.MustConverse(t, l.Client(), l.address(t, "a"))
			e2e.MustAsk(t, l.Client(), l.address(t, "b"))
			if err := u.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			u.awaitEnd(t)
			if u.err != nil {
				t.Errorf("up: %v", u.err)
			}
		})
	}
}

// awaitEnd waits until the process has exited.
func (u *up) awaitEnd(t *testing.T) {
	t.Helper()
	select {
	case <-u.done:
	case <-time.After(e2e.Patience):
		t.Fatal("wangell up does not end")
	}
}

func TestSignalDuringTheStartLeavesNothing(t *testing.T) {
	l := newLab(t, 1)
	for _, after := range []time.Duration{10, 50, 100, 200, 250, 300, 400, 600} {
		u, err := l.launch(manifest(service{name: "hello"}), "-f", "-")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(after * time.Millisecond) // any point of the start
		err = u.stop()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGTERM && u.said() == "" {
			continue // the signal came before up had a handler for it
		}
		if err != nil {
			t.Errorf("after %d ms: %v\n%s", after, err, u.said())
		}
	}
}

func TestSignalDuringAWakeRefusesParkedClients(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "slow", env: map[string]string{"LISTEN_DELAY": "1h"},
		more: "terminationGracePeriodSeconds: 1"})
	failed := make(chan error, 1)
	address := l.address(t, "slow")
	go func() {
		_, err := e2e.Dial(l.Client().Dialer(), address)
		failed <- err
	}()
	l.until(t, "slow", "waking", isState("Waking"))
	if err := u.stop(); err != nil {
		t.Errorf("up: %v", err)
	}
	if err := <-failed; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the parked client: %v, want connection refused", err)
	}
}

// stubborn is a service whose process ignores SIGTERM for an hour, which is its grace period.
func stubborn() service {
	return service{name: "stubborn", env: map[string]string{"STOP_DELAY": "1h"},
		more: "terminationGracePeriodSeconds: 3600"}
}

// The first one waits for containers, for up to their grace period.
func TestSecondSignalDoesNotWaitForContainers(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, stubborn())
	e2e.MustAsk(t, l.Client(), l.address(t, "stubborn"))
	l.until(t, "stubborn", "warm", isState("Warm")) // a start in progress would be cancelled instead
	if err := u.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "up reports that it is shutting down", func() bool {
		return strings.Contains(u.said(),
			"shutting down")
	})
	select {
	case <-u.done:
		t.Fatalf("up did not wait for the container: %v", u.err)
	case <-time.After(time.Second):
	}
	if err := u.stop(); err != nil {
		t.Errorf("up: %v", err)
	}
}

// After the timeout, up is killed and all of it removed.
func TestDownKillsAnUpThatWaitsForItsContainers(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, stubborn())
	e2e.MustAsk(t, l.Client(), l.address(t, "stubborn"))
	l.until(t, "stubborn", "warm", isState("Warm"))
	l.must(t, "down", "--timeout", "1s")
	u.awaitEnd(t)
}

// up exits without an error.
func TestDownStopsARunningUp(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "hello"})
	l.must(t, "down")
	u.awaitEnd(t)
	if u.err != nil {
		t.Errorf("up: %v", u.err)
	}
	l.must(t, "down") // without an instance it succeeds, too
}

// The instance had pods that run, one that is waking and one that is being stopped.
func TestDownRemovesAKilledInstance(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "warm"}, service{name: "waking", env: map[string]string{"LISTEN_DELAY": "1h"}},
		stubborn())
	e2e.MustAsk(t, l.Client(), l.address(t, "warm"))
	e2e.MustAsk(t, l.Client(), l.address(t, "stubborn"))
	waking := l.address(t, "waking")
	go func() {
		if c, err := e2e.Dial(l.Client().Dialer(), waking); err == nil {
			c.Close()
		}
	}()
	l.until(t, "waking", "its pod", hasPod("starting"))
	go func() { _, _ = l.wangell("sleep", "stubborn") }()
	l.until(t, "stubborn", "its end", hasPod("stopping"))
	if err := u.kill(); err != nil {
		t.Fatal(err)
	}
	l.must(t, "down")
}

// After a kill -9 an open connection goes on, and the next up keeps the pod, the address and the connection.
func TestNextUpAdoptsPodsAndConnections(t *testing.T) {
	l := newLab(t, 1)
	first := l.start(t, lines("lines"), service{name: "cold"})
	address, cold := l.address(t, "lines"), l.address(t, "cold")
	k := e2e.MustConverse(t, l.Client(), address)
	k.MustEcho(t, "before")
	pod := l.service(t, "lines").Pods[0].ID
	for range 2 {
		if err := first.kill(); err != nil {
			t.Fatal(err)
		}
		k.MustEcho(t, "without up")
		first = l.start(t, lines("lines"), service{name: "cold"})
		k.MustEcho(t, "with the next up")
		next := e2e.MustConverse(t, l.Client(), address)
		if next.Greeting.Instance != k.Greeting.Instance {
			t.Error("another process serves after the next up")
		}
		next.Close()
		s := l.until(t, "lines", "warm", isState("Warm"))
		if len(s.Pods) != 1 || s.Pods[0].ID != pod || l.address(t, "lines") != address {
			t.Errorf("after the next up: %+v", s)
		}
		e2e.MustAsk(t, l.Client(), cold)
		l.sleep(t, "cold")
	}
	k.MustEcho(t, "at the end")
	k.Close()
	l.untilNoFlows(t, "lines")
	l.sleep(t, "lines")
	e2e.MustConverse(t, l.Client(), address)
}

// The next up answers it.
func TestClientWaitsWhileThereIsNoUp(t *testing.T) {
	l := newLab(t, 1)
	first := l.start(t, service{name: "hello"})
	address := l.address(t, "hello")
	if err := first.kill(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := e2e.Ask(l.Client(), address)
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("without an instance: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	l.start(t, service{name: "hello"})
	if err := <-answered; err != nil {
		t.Errorf("the client that waited: %v", err)
	}
}

// As behind a tee that got the same Ctrl-C.
func TestUpOutlivesTheReadersOfItsOutput(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "hello"})
	for _, o := range u.outputs {
		if err := o.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
	l.must(t, "sleep", "hello")
	if err := u.stop(); err != nil {
		t.Error(err)
	}
}

// As before grep -q, which ends at the first match.
func TestCommandsWithoutAReaderLeaveNoContainerd(t *testing.T) {
	l := newLab(t, 1)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	cmd := l.Node.Command(t.Context(), program, "image", "ls", "--run-dir", l.run, "--state-dir", l.state, "--containerd",
		"own")
	cmd.Stdout = w
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("image ls without a reader: %v", err)
	}
	if _, err := os.Stat(l.run); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the run folder of its containerd: %v", err)
	}
}

// The message names the process that holds the run folder.
func TestSecondUpIsRefused(t *testing.T) {
	l := newLab(t, 1)
	u := l.start(t, service{name: "hello"})
	_, err := l.wangell("up", "-f", "../../examples/hello.yaml", "--state-dir", l.state, "--containerd", "own")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(err.Error(),
		fmt.Sprintf("pid %d", u.cmd.Process.Pid)) {
		t.Errorf("second up: %v, want exit code 1 and pid %d", err, u.cmd.Process.Pid)
	}
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
}
