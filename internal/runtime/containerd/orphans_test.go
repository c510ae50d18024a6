// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// A containerd that is killed between making the folder of a snapshot and recording it leaves a folder that is in the
// way of the next snapshot.
func TestFoldersThatAKilledContainerdLeavesAreNotInTheWay(t *testing.T) {
	cfg := unready(t)
	r := startWithProbe(t, cfg)
	folders := filepath.Join(snapshotterRoot(cfg.StateDir, DefaultSnapshotter), "snapshots")
	entries, err := os.ReadDir(folders)
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	last := 0
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			last = max(last, n)
		}
	}
	// Numbers are not used again, so the next one may be some above that of the last folder.
	for n := range 8 {
		if err := os.MkdirAll(filepath.Join(folders, fmt.Sprint(last+1+n), "fs"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	_, err = r.Start(t.Context(), runtimetest.Service("blocked"), runtime.StartHooks{})
	if err == nil || !strings.Contains(err.Error(), "file exists") {
		t.Fatalf("the folders are not in the way: %v", err)
	}
	pid := r.own.PID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	answers(t, r, pid)
	if _, err := r.Start(t.Context(), runtimetest.Service("blocked"), runtime.StartHooks{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(folders, fmt.Sprint(last+8))); !os.IsNotExist(err) {
		t.Errorf("a folder is left: %v", err)
	}
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(folders, e.Name())); err != nil {
			t.Errorf("a recorded snapshot is gone: %v", err)
		}
	}
}
