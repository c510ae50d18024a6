// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"wangell.loutres.me/test/testutil/need"
)

func TestNumbersAndFieldsAreReadFromFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("7\n")
	if n, err := Number(file); err != nil || n != 7 {
		t.Errorf("number: %d, %v", n, err)
	}
	write("max\n")
	if n, err := Number(file); err == nil {
		t.Errorf("number of max: %d", n)
	}
	write("oom 3\noom_kill 1\nlocal x\n")
	if n, err := Field(file, "oom_kill"); err != nil || n != 1 {
		t.Errorf("field: %d, %v", n, err)
	}
	if _, err := Field(file, "kill"); !errors.Is(err, ErrNoField) {
		t.Errorf("missing field: %v", err)
	}
	if n, err := Field(file, "local"); err == nil || errors.Is(err, ErrNoField) {
		t.Errorf("field that is no number: %d, %v", n, err)
	}
	if _, err := Number(file + "2"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

// The file is opened before the cgroup is removed, and read afterwards.
func TestCgroupThatIsRemovedMeanwhileDoesNotExist(t *testing.T) {
	need.Root(t)
	root := DefaultRoot
	if _, err := os.Stat(filepath.Join(root, "memory", "cgroup.procs")); err == nil { // version 1
		root = filepath.Join(root, "memory")
	}
	dir := filepath.Join(root, fmt.Sprintf("wangell-cgroup-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "cgroup.procs"))
	if err := errors.Join(err, os.Remove(dir)); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text, err := read(f); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := io.ReadAll(f); err == nil {
		t.Error("the kernel reads files of removed cgroups")
	}
}
