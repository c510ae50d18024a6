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
			"a/pod/cpu.stat": "usage_usec 2500000\nuser_usec 1\n", "a/pod/memory.current": "1000\n",
			"a/pod/memory.stat": "anon 5\ninactive_file 300\n",
		}},
		{"version 1", map[string]string{
			"cpuacct/a/pod/cpuacct.usage": "2500000000\n", "memory/a/pod/memory.usage_in_bytes": "1000\n",
			"memory/a/pod/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
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
		if u, err := cgroupUsage(root, "a/other"); err == nil {
			t.Errorf("%s: of a cgroup that does not exist: %+v", c.name, u)
		}
	}
}
