// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// The cgroups of a pod in a hierarchy of version 2, as kubelet, containerd 2 and systemd make them on Debian 13, and as
// kubelet makes them with the driver cgroupfs.
var layouts = map[string]struct{ pod, pause, main string }{
	"systemd": {
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0c1d2e3f_0001_4a5b_8c9d_000000000001.slice",
		"cri-containerd-0a1b.scope", "cri-containerd-2c3d.scope",
	},
	"systemd, Guaranteed": {
		"/kubepods.slice/kubepods-pod0c1d2e3f_0001_4a5b_8c9d_000000000001.slice",
		"cri-containerd-0a1b.scope", "cri-containerd-2c3d.scope",
	},
	"systemd, CRI-O with crun": {
		"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0c1d2e3f_0001_4a5b_8c9d_000000000001.slice",
		"crio-0a1b.scope/container", "crio-2c3d.scope/container",
	},
	"cgroupfs": {"/kubepods/burstable/pod0c1d2e3f-0001-4a5b-8c9d-000000000001", "0a1b", "2c3d"},
}

// makeCgroup makes a folder with the files of a cgroup of version 2.
func makeCgroup(t *testing.T, dir string, pids ...int) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	procs := ""
	for _, pid := range pids {
		procs += fmt.Sprintln(pid)
	}
	for name, text := range map[string]string{
		"cgroup.procs": procs, "cgroup.freeze": "0\n", "cgroup.events": "populated 1\nfrozen 0\n",
		"cpu.stat":       "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\n",
		"memory.current": "1048576\n", "memory.swap.current": "4096\n", "memory.reclaim": "", "pids.current": "2\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPodsOfSystemdAreFrozenByTheirSlice(t *testing.T) {
	for name, l := range layouts {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			pause, main := sleeper(t).Process.Pid, sleeper(t).Process.Pid
			for dir := l.pod; dir != "/"; dir = filepath.Dir(dir) {
				makeCgroup(t, filepath.Join(root, dir))
			}
			for dir, pid := range map[string]int{l.pause: pause, l.main: main} {
				at := filepath.Join(root, l.pod, dir)
				makeCgroup(t, at, pid)
				if above := filepath.Dir(at); above != filepath.Join(root, l.pod) {
					makeCgroup(t, above)
				}
			}
			f := New(root)
			events := filepath.Join(root, l.pod, "cgroup.events")
			if err := os.WriteFile(events, []byte("populated 1\nfrozen 1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := f.Freeze(ctx, l.pod); err != nil {
				t.Fatal(err)
			}
			frozen := func(dir string) string {
				text, err := os.ReadFile(filepath.Join(root, dir, "cgroup.freeze"))
				if err != nil {
					t.Fatal(err)
				}
				return string(text[:1])
			}
			// The containers' own files stay: runtimes read them.
			if got := frozen(l.pod) + frozen(filepath.Dir(l.pod)) + frozen(filepath.Join(l.pod, l.main)); got != "100" {
				t.Errorf("frozen: pod, parent, container %s", got)
			}
			in, err := f.Inside(l.pod)
			mains := []int{pause, main}
			slices.Sort(mains)
			if err != nil || !slices.Equal(in.Mains, mains) || len(in.Guests) > 0 {
				t.Errorf("inside %+v, %v; want %v", in, err, mains)
			}
			if held, err := f.Holds(l.pod, pause); !held || err != nil {
				t.Errorf("holds its pause container: %t, %v", held, err)
			}
			if m, err := f.Memory(l.pod); err != nil || m != (Memory{1 << 20, 4096}) {
				t.Errorf("memory %+v, %v", m, err)
			}
			if used, err := f.CPU(l.pod); err != nil || used != 1500*time.Millisecond {
				t.Errorf("CPU time %s, %v", used, err)
			}
			if n, err := f.tasks(l.pod); err != nil || n != 2 {
				t.Errorf("%d tasks, %v", n, err)
			}
			if err := f.Thaw(l.pod); err != nil || frozen(l.pod) != "0" {
				t.Errorf("thaw: %s, %v", frozen(l.pod), err)
			}
		})
	}
}
