// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

func TestTailCopiesTheLastLines(t *testing.T) {
	name := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", 100<<10) + "\n" // longer than the read buffer
	for _, c := range []struct {
		old, now, want string
		tail           int
	}{
		{tail: 5, want: ""},
		{now: "a\nb\n", tail: 0, want: ""},
		{now: "a\nb\n", tail: 1, want: "b\n"},
		{now: "a\nb", tail: 1, want: "b"},
		{now: "a\n\n", tail: 1, want: "\n"},
		{now: "a\nb\n", tail: 2, want: "a\nb\n"},
		{now: "a\nb\n", tail: 3, want: "a\nb\n"},
		{old: "1\n2\n", now: "a\nb\n", tail: 2, want: "a\nb\n"},
		{old: "1\n2\n", now: "a\nb\n", tail: 3, want: "2\na\nb\n"},
		{old: "1\n2\n", now: "a\nb\n", tail: 9, want: "1\n2\na\nb\n"},
		{old: "1\n2\n", now: "a\nb\n", tail: -1, want: "1\n2\na\nb\n"},
		{old: "1\n2\n", tail: 1, want: "2\n"},
		{now: long + long + "b\n", tail: 2, want: long + "b\n"},
	} {
		for file, text := range map[string]string{name: c.now, name + logRotated: c.old} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var b bytes.Buffer
		if _, err := copyTail(name, &b, c.tail); err != nil || b.String() != c.want {
			t.Errorf("last %d lines of %.20q and %.20q: %.20q, %v; want %.20q", c.tail, c.old, c.now, b.String(), err, c.want)
		}
	}
}

func TestPodKeepsWritingAfterItsLogIsRotated(t *testing.T) {
	r := startWithProbe(t, unready(t))
	s := runtimetest.Service("rotated")
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	name := r.cfg.logFile(v1alpha1.KeyOf(s))
	runtimetest.Ask(t, p, "/print", url.Values{"t": {"old"}, "n": {"1000"}})
	eventually(t, func() error {
		if size := fileSize(name); size < 4000 {
			return os.ErrNotExist
		}
		return rotate(name, 4000)
	})
	if size := fileSize(name + logRotated); size < 4000 {
		t.Errorf("the copy has %d bytes", size)
	}
	if err := rotate(name, 4000); err != nil || fileSize(name) != 0 {
		t.Errorf("%v, %d bytes", err, fileSize(name))
	}
	runtimetest.Ask(t, p, "/print", url.Values{"t": {"new"}, "n": {"1"}})
	if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil || string(text) != "new\nprobe: stopped\n" {
		t.Errorf("after rotation: %q, %v", text, err)
	}
	if e := runtimetest.NextExit(t, r, p.ID); e.LogTail != string(text) {
		t.Errorf("end of log %q", e.LogTail)
	}
}
