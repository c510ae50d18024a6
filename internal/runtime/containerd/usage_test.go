// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"os"
	"path/filepath"
	"testing"
	"time"
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
