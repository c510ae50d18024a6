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

	"wangell.loutres.me/internal/cgroup"
	"wangell.loutres.me/internal/testutil/need"
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

// newPod makes a cgroup for a pod, and one for a container of it, which processes enter by enter.
func newPod(t *testing.T) (f *Freezer, pod string, enter func(pid int)) {
	t.Helper()
	need.Root(t)
	f = New("")
	pod = fmt.Sprintf("/wangell-doors-test-%d", os.Getpid())
	place := ""
	for _, p := range []string{"", "freezer", "unified"} {
		if _, err := os.Stat(filepath.Join(cgroup.DefaultRoot, p, "cgroup.procs")); err == nil {
			place = filepath.Join(cgroup.DefaultRoot, p)
			break
		}
	}
	container := filepath.Join(place, pod, "c")
	if err := os.MkdirAll(container, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{container, filepath.Dir(container)} {
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
	return f, pod, func(pid int) {
		if err := os.WriteFile(filepath.Join(container, "cgroup.procs"), fmt.Append(nil, pid), 0); err != nil {
			t.Error(err)
		}
	}
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

func TestProcessThatEntersAFrozenCgroupIsNoticed(t *testing.T) {
	f, pod, enter := newPod(t)
	main := sleeper(t)
	enter(main.Process.Pid)
	doors, err := f.Doors()
	if err != nil {
		t.Fatal(err)
	}
	defer doors.Close()
	entered := make(chan struct{}, 1)
	stop, err := doors.Watch(pod, func() {
		select {
		case entered <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := f.Freeze(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	defer f.Thaw(pod)
	select {
	case <-entered:
		t.Error("freezing counts as an entry")
	case <-time.After(20 * time.Millisecond):
	}
	guest := sleeper(t)
	enter(guest.Process.Pid)
	select {
	case <-entered:
	case <-time.After(time.Minute):
		t.Fatal("the entry was not noticed")
	}
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
	if err := main.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !in.Signalled() {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", main.Process.Pid))
		t.Errorf("a signal that waits for a frozen process is not seen: %s",
			strings.ReplaceAll(string(status), "\n", " "))
	}
}
