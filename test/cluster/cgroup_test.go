// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/need"
)

// A daemon that is killed with its node leaves frozen pods behind.
func TestCgroupOfAFrozenProcessIsRemoved(t *testing.T) {
	need.Root(t)
	hierarchy, file, frozen := cgroupRoot+"/freezer", "freezer.state", "FROZEN"
	if _, err := os.Stat(hierarchy); err != nil { // version 2
		hierarchy, file, frozen = cgroupRoot, "cgroup.freeze", "1"
	}
	path := fmt.Sprintf("/wangell-cluster-test-%d", os.Getpid())
	dir := filepath.Join(hierarchy, path, "pod")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "infinity")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, file := range []struct{ name, text string }{
		{"cgroup.procs", fmt.Sprint(cmd.Process.Pid)}, {file, frozen},
	} {
		if err := os.WriteFile(filepath.Join(dir, file.name), []byte(file.text), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := removeCgroup(path, time.Minute); err != nil {
		t.Error(err)
	}
	<-ended
}
