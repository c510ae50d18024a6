// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestResolutionIsKeptUntilAptsStateChanges(t *testing.T) {
	cache, lists := t.TempDir(), t.TempDir()
	list := filepath.Join(lists, "debian_Packages")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	suite := ""
	file := func(conf string, names ...string) string {
		t.Helper()
		f, err := resolutionFile(cache, []byte(conf), []string{lists}, suite, names)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	write("redis 7")
	old := file("a", "redis")
	want := []Package{{Name: "redis", Version: "7"}}
	if err := writeResolution(old, want); err != nil {
		t.Fatal(err)
	}
	if got, err := readResolution(file("a", "redis")); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for _, other := range []string{file("a", "nginx"), file("a", "redis", "nginx"), file("b", "redis")} {
		if got, err := readResolution(other); err == nil {
			t.Errorf("for other packages or another configuration: %v", got)
		}
	}
	suite = "trixie"
	newer := file("a", "redis")
	if got, err := readResolution(newer); err == nil {
		t.Errorf("for another suite: %v", got)
	}
	if err := writeResolution(newer, want); err != nil {
		t.Fatal(err)
	}
	suite = ""
	if got, err := readResolution(old); err != nil || !slices.Equal(got, want) {
		t.Errorf("after that of a suite was kept: %v, %v", got, err)
	}
	write("redis 7.1")
	changed := file("a", "redis")
	if got, err := readResolution(changed); err == nil {
		t.Errorf("for changed lists: %v", got)
	}
	if err := writeResolution(changed, want); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(old)); !os.IsNotExist(err) {
		t.Errorf("the resolution from the old lists is still there: %v", err)
	}
}
