// SPDX-License-Identifier: Apache-2.0

package tempdir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestFolderOfAnEndedProcessIsRemoved(t *testing.T) {
	parent := t.TempDir()
	left := mustMake(t, parent)
	if err := os.WriteFile(filepath.Join(left.Path, "layer"), []byte("bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	left.lock.Close() // as the kernel does it for a process that is killed
	used := mustMake(t, parent)
	if _, err := os.Stat(left.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of an ended process: %v", err)
	}
	if _, err := os.Stat(used.Path); err != nil {
		t.Error(err)
	}
}

func TestFolderInUseStays(t *testing.T) {
	parent := t.TempDir()
	first, second := mustMake(t, parent), mustMake(t, parent)
	for _, d := range []*Dir{first, second} {
		if _, err := os.Stat(d.Path); err != nil {
			t.Error(err)
		}
	}
}

func TestForeignFoldersStay(t *testing.T) {
	parent := t.TempDir()
	elsewhere := t.TempDir()
	if err := os.WriteFile(filepath.Join(elsewhere, lockFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link, without := filepath.Join(parent, "x-link"), filepath.Join(parent, "x-without")
	file := filepath.Join(parent, "x-file")
	err := errors.Join(os.Symlink(elsewhere, link), os.Mkdir(without, 0o700), os.WriteFile(file, nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	mustMake(t, parent)
	for _, path := range []string{link, elsewhere, without, file} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("a folder without a lock, or a link to one: %v", err)
		}
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	parent := t.TempDir()
	if err := mustMake(t, parent).Remove(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestFolderThatCannotBeRemovedHindersNobody(t *testing.T) {
	parent := t.TempDir()
	mustMake(t, parent).lock.Close()
	d, err := Make(parent, "x-", func(string) error { return errors.New("busy") })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(d.Path); err != nil {
		t.Error(err)
	}
}

func mustMake(t *testing.T, parent string) *Dir {
	t.Helper()
	d, err := Make(parent, "x-", os.RemoveAll)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
