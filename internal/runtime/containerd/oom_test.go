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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

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
