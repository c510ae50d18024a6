// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wangell.loutres.me/internal/runtime"
)

func logOf(t *testing.T, raw string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(name, []byte(raw), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openLog(filepath.Dir(name), name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, err := logEnd(f)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEndOfALogIsRead(t *testing.T) {
	const at = "2026-05-01T10:00:00.123456789Z "
	for _, c := range []struct{ raw, want string }{
		{"", ""},
		{at + "stdout F one\n" + at + "stderr F two words\n", "one\ntwo words\n"},
		{at + "stdout P be\n" + at + "stdout F gin\n" + at + "stdout F end\n", "begin\nend\n"},
		{at + "stdout F \n" + at + "stdout F whole\n" + at + "stdout F hal", "\nwhole\n"},
		{at + "stdout F:tag a\n" + "no log\n", "a\n"},
		{at + "stdout F \xff\n", "\uFFFD\n"},
	} {
		if got := logOf(t, c.raw); got != c.want {
			t.Errorf("%q: %q, want %q", c.raw, got, c.want)
		}
	}
	var raw strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&raw, "%sstdout F line %d\n", at, i)
	}
	got := logOf(t, raw.String())
	if len(got) > runtime.MaxPodLog || !strings.HasPrefix(got, "line ") || !strings.HasSuffix(got, "line 9999\n") ||
		strings.Count(got, "\n") < 1000 {
		t.Errorf("%d bytes, from %.20q", len(got), got)
	}
}

// A log that leads out of the folder is not opened.
func TestOnlyLogsAreOpened(t *testing.T) {
	folder := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(folder, "0.log")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{secret, filepath.Join(folder, "0.log"), folder + "/../x", "relative"} {
		if f, err := openLog(folder, path); err == nil {
			f.Close()
			t.Errorf("%s is opened", path)
		}
	}
}
