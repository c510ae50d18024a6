// SPDX-License-Identifier: Apache-2.0

package zram

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wangell.loutres.me/test/testutil/need"
)

// noted returns the device that a file notes.
func noted(t *testing.T, file string) record {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// swapLine returns the line of /proc/swaps about a device; empty if it is not swapped to.
func swapLine(t *testing.T, device string) string {
	t.Helper()
	text, err := os.ReadFile("/proc/swaps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, device+" ") || strings.HasPrefix(line, device+"\t") {
			return line
		}
	}
	return ""
}

func TestDeviceIsSwappedToUntilItIsRemoved(t *testing.T) {
	need.Root(t)
	file := filepath.Join(t.TempDir(), "zram.json")
	err := Add(file, 8<<20)
	if errors.Is(err, ErrNone) {
		need.Unmet(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Remove(file) })
	first := noted(t, file)
	if line := swapLine(t, first.path()); !strings.Contains(line, "8188") || !strings.Contains(line, "100") {
		t.Errorf("/proc/swaps: %q", line)
	}
	// As after a kill: the next start knows nothing but the file.
	if err := Add(file, 4<<20); err != nil {
		t.Fatal(err)
	}
	second := noted(t, file)
	if line := swapLine(t, second.path()); !strings.Contains(line, "4092") {
		t.Errorf("/proc/swaps: %q", line)
	}
	if second.ID == first.ID {
		t.Error("the second area has the ID of the first one")
	}
	if err := Add(file, 4<<20); err != nil {
		t.Fatal(err)
	}
	if third := noted(t, file); third != second {
		t.Errorf("a device of the same size was replaced: %+v, before %+v", third, second)
	}
	for range 2 {
		if err := Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	if line := swapLine(t, second.path()); line != "" {
		t.Errorf("it is still swapped to: %s", line)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the note is left: %v", err)
	}
}

// Between the note and the kill, another program may have been given the same number.
func TestDeviceOfAnotherIsNotRemoved(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	theirs, ours := filepath.Join(dir, "theirs"), filepath.Join(dir, "ours")
	err := Add(theirs, 4<<20)
	if errors.Is(err, ErrNone) {
		need.Unmet(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Remove(theirs) })
	r := noted(t, theirs)
	write := func(r record) {
		t.Helper()
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(ours, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	foreign, rebooted := r, r
	foreign.ID[0]++
	rebooted.Boot = "another"
	for _, note := range []record{foreign, rebooted} {
		write(note)
		if err := Remove(ours); err != nil {
			t.Error(err)
		}
		if swapLine(t, r.path()) == "" {
			t.Fatal("the device of another was removed")
		}
		if _, err := os.Stat(ours); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the note is left: %v", err)
		}
	}
}

func TestSwapHeaderIsReadBack(t *testing.T) {
	page, id := swapHeader(1<<20, 4096)
	if got, ok := swapID(page); !ok || got != id {
		t.Errorf("%x, %t, want %x", got, ok, id)
	}
	page[headerLabel]++
	if _, ok := swapID(page); ok {
		t.Error("the area of another program is taken for ours")
	}
	if _, ok := swapID(make([]byte, 4096)); ok {
		t.Error("an empty page is taken for a header")
	}
}
