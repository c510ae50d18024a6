// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

func TestUsageIsReadFromBothVersionsOfCgroups(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
	}{
		{"version 2", map[string]string{
			"a/pod/cpu.stat": "usage_usec 2500000\nuser_usec 1\nnr_periods 9\nnr_throttled 4\n" +
				"throttled_usec 1500\n",
			"a/pod/memory.current": "1000\n", "a/pod/memory.max": "4096\n",
			"a/pod/memory.stat": "anon 5\ninactive_file 300\n",
		}},
		{"version 1", map[string]string{
			"cpuacct/a/pod/cpuacct.usage": "2500000000\n", "memory/a/pod/memory.usage_in_bytes": "1000\n",
			"memory/a/pod/memory.stat":           "inactive_file 1\ntotal_inactive_file 300\n",
			"memory/a/pod/memory.limit_in_bytes": "4096\n",
			"cpu/a/pod/cpu.stat":                 "nr_periods 9\nnr_throttled 4\nthrottled_time 1500000\n",
		}},
		{"version 2 without limits", map[string]string{
			"a/pod/cpu.stat": "usage_usec 2500000\nuser_usec 1\n", "a/pod/memory.current": "1000\n",
			"a/pod/memory.max": "max\n", "a/pod/memory.stat": "inactive_file 300\n",
		}},
		{"version 1, and an empty version 2 beside it", map[string]string{
			"unified/a/pod/cgroup.procs": "1\n", "cpuacct/a/pod/cpuacct.usage": "2500000000\n",
			"memory/a/pod/memory.usage_in_bytes": "1000\n",
			"memory/a/pod/memory.stat":           "total_inactive_file 300\n",
		}},
	} {
		root := t.TempDir()
		for name, content := range c.files {
			file := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		u, err := cgroupUsage(root, "a/pod")
		if err != nil || u.CPU != 2500*time.Millisecond || u.Memory != 700 || u.At == 0 {
			t.Errorf("%s: %+v, %v", c.name, u, err)
		}
		if limited := c.name == "version 1" || c.name == "version 2"; limited && (u.MemoryLimit != 4096 || u.Periods != 9 ||
			u.Throttled != 4 || u.ThrottledTime != 1500*time.Microsecond) ||
			!limited && u.MemoryLimit+u.Periods+u.Throttled+uint64(u.ThrottledTime) != 0 {
			t.Errorf("%s: %+v", c.name, u)
		}
		if u, err := cgroupUsage(root, "a/other"); err == nil {
			t.Errorf("%s: of a cgroup that does not exist: %+v", c.name, u)
		}
	}
}

func TestKillForLackOfMemoryIsReadFromBothVersionsOfCgroups(t *testing.T) {
	const v1, none = "memory/a/pod/memory.", "9223372036854771712\n"
	for name, c := range map[string]struct {
		files map[string]string
		code  uint32
		want  string
	}{
		"version 2": {map[string]string{
			"a/pod/memory.current": "0\n", "a/pod/memory.events": "oom 3\noom_kill 1\n",
			"a/pod/memory.max": "67108864\n", "a/pod/memory.peak": "67100000\n",
		}, 137, "out of memory (resources.limits.memory is 64 MiB, peak 63 MiB)"},
		"version 2, no limit, no peak": {map[string]string{
			"a/pod/memory.current": "0\n", "a/pod/memory.events": "oom_kill 1\n", "a/pod/memory.max": "max\n",
		}, 137, "out of memory (no limit)"},
		"version 1": {map[string]string{
			v1 + "oom_control": "oom_kill_disable 0\noom_kill 1\n", v1 + "limit_in_bytes": "67108864\n",
			v1 + "max_usage_in_bytes": "67108864\n",
		}, 137, "out of memory (resources.limits.memory is 64 MiB, peak 64 MiB)"},
		"version 1, no limit": {map[string]string{
			v1 + "oom_control": "oom_kill 1\n", v1 + "limit_in_bytes": none, v1 + "max_usage_in_bytes": "67108864\n",
		}, 137, "out of memory (no limit, peak 64 MiB)"},
		"killed by somebody": {map[string]string{v1 + "oom_control": "oom_kill 0\n"}, 137, ""},
		"an exit":            {map[string]string{v1 + "oom_control": "oom_kill 1\n"}, 1, ""},
		"no cgroup":          {nil, 137, ""},
	} {
		root := t.TempDir()
		for file, content := range c.files {
			file = filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got := outOfMemory(root, "a/pod", c.code); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// countSwap has the memory limit of a cgroup count swap, which the machine may have because of other tests.
func countSwap(t *testing.T, cgroup string, limit int) {
	t.Helper()
	file, text := filepath.Join(cgroupRoot, cgroup, "memory.swap.max"), "0"
	if _, err := os.Stat(filepath.Join(cgroupRoot, "memory", cgroup)); err == nil {
		file, text = filepath.Join(cgroupRoot, "memory", cgroup, "memory.memsw.limit_in_bytes"), strconv.Itoa(limit)
	}
	if err := os.WriteFile(file, []byte(text), 0); err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without swap
		t.Fatal(err)
	}
}

// The probe builds a text of 256 MiB.
func TestExitTellsThatMemoryRanOut(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	s := runtimetest.Service("hungry")
	s.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	countSwap(t, r.cfg.podCgroup(p.ID), 64<<20)
	go func() { // there is no answer
		if resp, err := http.Get("http://" + p.Addr.String() + ":8080/print?t=x&n=134217728"); err == nil {
			_ = resp.Body.Close()
		}
	}()
	const want = "out of memory (resources.limits.memory is 64 MiB"
	if e := runtimetest.NextExit(t, r, p.ID); e.Code != killedExit || !strings.HasPrefix(e.Cause, want) {
		t.Errorf("exit %+v", e)
	}
	if err := r.Stop(t.Context(), p.ID, 0); err != nil {
		t.Error(err)
	}
}
