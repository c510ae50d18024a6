// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// spinning starts a process that uses the CPU in a cgroup of its own, in every hierarchy that freezes or measures.
func spinning(t *testing.T, f *Freezer) (path string, pid int) {
	t.Helper()
	path = fmt.Sprintf("/wangell-freezer-test-%d", os.Getpid())
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var made []string
	t.Cleanup(func() {
		if err := f.Thaw(path); err != nil {
			t.Error(err)
		}
		cmd.Process.Kill()
		cmd.Wait()
		for _, dir := range made {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
	for _, place := range []string{"", "freezer", "memory", "cpuacct"} {
		root := filepath.Join(f.root, place)
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue // no hierarchy
		}
		dir := filepath.Join(root, path)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		made = append(made, dir)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
	}
	return path, cmd.Process.Pid
}

// used returns the CPU time of a process, in ticks.
func used(t *testing.T, pid int) (ticks int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	var skip string
	args := make([]any, 0, 14)
	for range 13 {
		args = append(args, &skip)
	}
	if _, err := fmt.Sscan(string(text), append(args, &ticks)...); err != nil {
		t.Fatal(err)
	}
	return ticks
}

func TestFrozenProcessesStandStillUntilTheyAreThawed(t *testing.T) { eachVersion(t, testStandStill) }

func testStandStill(t *testing.T, root string) {
	f := New(root)
	path, pid := spinning(t, f)
	for range 3 {
		if err := f.Freeze(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		if frozen, err := f.Frozen(path); err != nil || !frozen {
			t.Fatalf("frozen: %t, %v", frozen, err)
		}
		before := used(t, pid)
		time.Sleep(100 * time.Millisecond)
		if after := used(t, pid); after != before {
			t.Errorf("a frozen process used %d ticks", after-before)
		}
		for range 2 { // the second time it runs already
			if err := f.Thaw(path); err != nil {
				t.Fatal(err)
			}
		}
		for deadline := time.Now().Add(time.Minute); used(t, pid) == before; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the process does not run again")
			}
		}
	}
	if used, err := f.CPU(path); err != nil || used <= 0 {
		t.Errorf("CPU time %s, %v", used, err)
	}
	if m, err := f.Memory(path); err != nil && root == "" { // what is beside other hierarchies may not account for it
		t.Errorf("memory %+v, %v", m, err)
	}
}

func TestMissingCgroupIsGone(t *testing.T) {
	f := New(t.TempDir())
	if err := f.Freeze(t.Context(), "/a"); !errors.Is(err, errNoFreezer) || !f.Gone("/a") {
		t.Errorf("freeze: %v", err)
	}
	if err := f.Thaw("/a"); !errors.Is(err, errNoFreezer) {
		t.Errorf("thaw: %v", err)
	}
}

// A cgroup that never comes to a stop is thawed again. The files are those of version 2 of cgroups.
func TestFreezeIsUndoneIfItTakesTooLong(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"cgroup.freeze": "0", "cgroup.events": "populated 1\nfrozen 0\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	f := New(root)
	if err := f.Freeze(ctx, "/a"); !errors.Is(err, context.DeadlineExceeded) || f.Gone("/a") {
		t.Errorf("freeze: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); err != nil || string(text) != "0" {
		t.Errorf("cgroup.freeze has %q, %v", text, err)
	}
}
