// SPDX-License-Identifier: Apache-2.0

package freezer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWeightIsRestoredAfterRequestsWereGivenBack(t *testing.T) {
	for _, file := range []string{"pod/cpu.weight", "cpu/pod/cpu.shares", "cpu,cpuacct/pod/cpu.shares"} {
		root := t.TempDir()
		at := filepath.Join(root, file)
		set := func(weight string) {
			if err := os.WriteFile(at, []byte(weight+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		f := New(root)
		if _, err := f.Weight("/pod"); err == nil {
			t.Errorf("%s: there is a weight without the file", file)
		}
		set("51")
		former, err := f.Weight("/pod")
		if err != nil || former != 51 {
			t.Fatalf("%s: %d, %v", file, former, err)
		}
		for now, want := range map[string]string{
			"2":  "51", // lowered: its containers request 1m
			"20": "20", // lowered by somebody else
			"90": "90",
		} {
			set(now)
			if err := f.RestoreWeight("/pod", former); err != nil {
				t.Error(err)
			}
			text, err := os.ReadFile(at)
			if got := strings.TrimSpace(string(text)); err != nil || got != want {
				t.Errorf("%s: %s becomes %q, %v; want %s", file, now, got, err, want)
			}
		}
	}
}
