// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"strings"
	"testing"

	"wangell.loutres.me/internal/wire"
)

func TestMemoryOfTheMachineIsRead(t *testing.T) {
	f, err := os.Open(meminfo)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if m, err := readMemory(f); err != nil || m.Total < 64<<20 || m.Available == 0 {
		t.Errorf("%+v, %v", m, err)
	}
	for text, want := range map[string]wire.Memory{
		"MemTotal:       4096 kB\nMemFree: 1 kB\nMemAvailable:    1024 kB\n": {Available: 1 << 20, Total: 4 << 20},
		"MemTotal: 4096 kB\n":                          {Total: 4 << 20}, // nothing is available
		"MemAvailable: 1024 kB\n":                      {},
		"MemTotal: 1 kB\nMemAvailable: 2 kB\n":         {},
		"MemTotal: x kB\n":                             {},
		"MemTotal: 1 GB\n":                             {},
		"MemTotal: 99999999999999999999 kB\n":          {},
		"MemTotal: 18014398509481984 kB\nMemTotal: \n": {},
	} {
		m, err := readMemory(strings.NewReader(text))
		if (err == nil) != (want.Total > 0) || err == nil && m != want {
			t.Errorf("%q: %+v, %v", text, m, err)
		}
	}
}

func TestNodeIsShortOfMemoryBeforeKubeletEvicts(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		available, total uint64
		want             bool
	}{
		{1300 * mib, 24 << 30, false}, {1200 * mib, 24 << 30, true},
		{260 * mib, 4 << 30, false}, {250 * mib, 4 << 30, true},
		{130 * mib, 1 << 30, false}, {120 * mib, 1 << 30, true},
	} {
		if got := isShort(wire.Memory{Available: c.available, Total: c.total}); got != c.want {
			t.Errorf("%d MiB of %d: %t", c.available/mib, c.total/mib, got)
		}
	}
}
