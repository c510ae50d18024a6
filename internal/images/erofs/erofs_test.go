// SPDX-License-Identifier: Apache-2.0

package erofs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake writes a mkfs.erofs that only tells its version, and whether it reads archives, and returns its folder.
func fake(t *testing.T, version, help string) string {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("#!/bin/sh\ncase $1 in\n--help) echo '%s';;\n--version) echo '%s';;\n"+
		"*) echo broken >&2; exit 1;;\nesac\n", help, version)
	if err := os.WriteFile(filepath.Join(dir, Program), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestMakerIsTheFirstInPathAndMustReadArchives(t *testing.T) {
	good := fake(t, "mkfs.erofs (erofs-utils) 1.8.6\navailable compressors: lz4", " --tar=X  read a tarball")
	m, err := Find(t.Context(), "/no/such/folder:relative:"+good)
	if err != nil || m.Version != "1.8.6" || m.File != filepath.Join(good, Program) {
		t.Errorf("%+v, %v", m, err)
	}
	old := fake(t, "mkfs.erofs 1.5", "usage: mkfs.erofs FILE DIRECTORY")
	if _, err := Find(t.Context(), old+":"+good); err == nil || !strings.Contains(err.Error(), "1.7 or later") {
		t.Errorf("a program that is too old: %v", err)
	}
	if _, err := Find(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "install the package") {
		t.Errorf("no program: %v", err)
	}
	file := filepath.Join(t.TempDir(), "image")
	if err := m.Make(t.Context(), strings.NewReader(""), file); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a program that fails: %v", err)
	}
}

func TestOptionsAreThoseThatTheVersionKnows(t *testing.T) {
	for version, want := range map[string]string{
		"1.7.1": "", "1.8": `mkfs_options = ["-T0", "--mkfs-time"]`, "1.8.1": `mkfs_options = ["-T0", "--mkfs-time"]`,
		"1.8.6": `mkfs_options = ["-T0", "--mkfs-time", "--sort=none"]`, "2.0": `"--sort=none"]`,
	} {
		got := Maker{Version: version}.Config()
		if !strings.Contains(got, want) || (want == "") == strings.Contains(got, "mkfs_options") ||
			!strings.Contains(got, `default = ["erofs", "walking"]`) {
			t.Errorf("%s:\n%s", version, got)
		}
	}
}

func TestVersionsThatCan(t *testing.T) {
	for version, want := range map[string]bool{"1.6.20": false, "2.1.4": false, "2.2.2": false, "2.2.3": true,
		"2.4.2": true, "3.0.0-rc.1": true, "": false} {
		if Supported(version) != want {
			t.Errorf("containerd %q: %t", version, !want)
		}
	}
	for release, want := range map[string]bool{"6.8.0-31-generic": false, "6.11.9": false, "6.12.3+deb13-amd64": true,
		"6.18.44": true, "7.0": true, "": false} {
		if MountsFiles(release) != want {
			t.Errorf("Linux %q: %t", release, !want)
		}
	}
}
