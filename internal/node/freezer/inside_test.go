// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/cgroup"
	"wangell.loutres.me/test/testutil/need"
)

// The processes of a container are its main one and its descendants, whatever else a runtime starts in its cgroup.
func TestGuestsAreToldFromTheProcessesOfAContainer(t *testing.T) {
	var in Inside
	containers := []map[int]process{
		{},                          // the pod's own cgroup
		{10: {parent: 9, start: 5}}, // the pause container
		{ // main with a child, and a shell with one
			20: {parent: 9, start: 7}, 21: {parent: 20, start: 8}, 30: {parent: 9, start: 90}, 31: {parent: 30, start: 91},
		},
	}
	all := map[int]process{}
	for _, c := range containers {
		for pid, p := range c {
			all[pid] = p
		}
	}
	in.split(containers, all)
	if !slices.Equal(in.Mains, []int{10, 20}) || !slices.Equal(in.Guests, []int{30, 31}) {
		t.Errorf("%+v", in)
	}
}

// eachVersion runs a test in the hierarchies of this machine, and in the one of version 2 that may be beside them.
func eachVersion(t *testing.T, test func(t *testing.T, root string)) {
	need.Root(t)
	t.Run("this machine", func(t *testing.T) { test(t, "") })
	beside := filepath.Join(cgroup.DefaultRoot, "unified")
	if _, err := os.Stat(filepath.Join(beside, "cgroup.procs")); err == nil {
		t.Run("version 2", func(t *testing.T) { test(t, beside) })
	}
}

// newPod makes a cgroup for a pod, and one for a container of it, whose folder in the hierarchy that freezes is dir.
func newPod(t *testing.T, root string) (f *Freezer, pod, dir string) {
	t.Helper()
	need.Root(t)
	f = New(root)
	pod = fmt.Sprintf("/wangell-doors-test-%d", os.Getpid())
	for _, place := range []string{"", "freezer", "unified"} {
		if _, err := os.Stat(filepath.Join(f.root, place, "cgroup.procs")); err == nil {
			dir = filepath.Join(f.root, place, pod, "c")
			break
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{dir, filepath.Dir(dir)} {
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // processes that have just ended
				err := os.Remove(dir)
				if err == nil || time.Now().After(end) {
					if err != nil {
						t.Error(err)
					}
					break
				}
			}
		}
	})
	return f, pod, dir
}

// enter has a process enter a cgroup.
func enter(t *testing.T, dir string, pid int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, pid), 0); err != nil {
		t.Error(err)
	}
}

// waiter starts a process that waits and handles SIGTERM.
func waiter(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "trap : TERM; echo; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil { // it handles the signal by now
		t.Fatal(err)
	}
	return cmd
}

// sleeper starts a process that does nothing.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

func TestProcessThatEntersAFrozenCgroupIsNoticed(t *testing.T) { eachVersion(t, testEntry) }

func testEntry(t *testing.T, root string) {
	f, pod, dir := newPod(t, root)
	main := waiter(t)
	enter(t, dir, main.Process.Pid)
	doors, err := f.Doors()
	if err != nil {
		t.Fatal(err)
	}
	defer doors.Close()
	entered := make(chan struct{}, 1)
	notice := func() {
		select {
		case entered <- struct{}{}:
		default:
		}
	}
	watched, err := doors.Watch(pod, notice)
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	if err := f.Freeze(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	defer f.Thaw(pod)
	select {
	case <-entered:
		t.Error("freezing counts as an entry")
	case <-time.After(20 * time.Millisecond):
	}
	noticed := func(how string) {
		t.Helper()
		select {
		case <-entered:
		case <-time.After(time.Minute):
			t.Fatalf("an entry %s was not noticed", how)
		}
	}
	guest := sleeper(t)
	enter(t, dir, guest.Process.Pid)
	noticed("by cgroup.procs")
	in, err := f.Inside(pod)
	if err != nil || !slices.Equal(in.Mains, []int{main.Process.Pid}) ||
		!slices.Equal(in.Guests, []int{guest.Process.Pid}) || in.Signalled() {
		t.Errorf("%+v, signalled %t, %v", in, in.Signalled(), err)
	}
	if held, err := f.Holds(pod, guest.Process.Pid); !held || err != nil {
		t.Errorf("holds the guest: %t, %v", held, err)
	}
	if held, err := f.Holds(pod, os.Getpid()); held || err != nil {
		t.Errorf("holds this process: %t, %v", held, err)
	}
	pipe := filepath.Join(t.TempDir(), "stdin")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	err = watched.WatchPipes([]string{pipe, pipe + "-of-nobody"}, notice)
	if err != nil {
		t.Fatal(err)
	}
	typed, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer typed.Close()
	if _, err := typed.WriteString("typed"); err != nil {
		t.Fatal(err)
	}
	noticed("of standard input")
	if f.opensSilently(pod) {
		testBirth(t, f, pod, dir, func() { watched.Recount() }, noticed)
	}
	if err := main.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !in.Signalled() {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", main.Process.Pid))
		t.Errorf("a signal that waits for a frozen process is not seen: %s",
			strings.ReplaceAll(string(status), "\n", " "))
	}
}

// testBirth starts a process inside of a frozen cgroup, as runc does it with version 2.
func testBirth(t *testing.T, f *Freezer, pod, dir string, recount func(), noticed func(how string)) {
	t.Helper()
	at, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	recount()
	born := exec.Command("true")
	born.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(at.Fd())}
	done := make(chan error, 1)
	go func() { done <- born.Run() }() // it stands still before it runs the program
	noticed("by birth")
	if err := f.Thaw(pod); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := f.Freeze(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}
