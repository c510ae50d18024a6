// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
)

const mib = 1 << 20

func TestJudgementNamesTheFolderThatIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		layer   runtime.Layer
		lasting int64
		folder  string
	}{
		"a database": {runtime.Layer{Bytes: 100 * mib, Folders: map[string]int64{
			"/var": 99 * mib, "/var/lib": 98 * mib, "/var/lib/mysql": 97 * mib, "/var/log": mib, "/etc": mib,
		}}, 100 * mib, "/var/lib/mysql"},
		"scattered": {runtime.Layer{Bytes: 100 * mib, Folders: map[string]int64{
			"/srv": 99 * mib, "/srv/a": 50 * mib, "/srv/b": 49 * mib,
		}}, 100 * mib, "/srv"},
		"scratch": {runtime.Layer{Bytes: 100 * mib, Folders: map[string]int64{
			"/tmp": 80 * mib, "/tmp/x": 80 * mib, "/var": 20 * mib, "/var/cache": 20 * mib,
		}}, 0, ""},
		"unknown": {runtime.Layer{Bytes: 5 * mib}, 5 * mib, ""},
	} {
		if lasting, folder := judge(c.layer); lasting != c.lasting || folder != c.folder {
			t.Errorf("%s: %d in %q", name, lasting, folder)
		}
	}
}

func TestLayerIsWarnedOfOnceItIsLargeOrFast(t *testing.T) {
	var l layer
	at := monotime.Time(1e9)
	for i, step := range []struct {
		seconds int64
		bytes   int64
		changed bool
		want    string
	}{
		{0, 2 * mib, false, ""},                             // logs and process IDs
		{10, 3 * mib, false, ""},                            // slow
		{10, 14 * mib, true, "1.1 MiB/s (14.0 MiB so far)"}, // fast
		{10, 20 * mib, false, "(14.0 MiB so far)"},          // told
		{100, 28 * mib, true, "has written 28.0 MiB"},       // twice as much
		{10, 1 * mib, false, "has written 28.0 MiB"},        // it stays, although files were removed
	} {
		at += monotime.Time(step.seconds * 1e9)
		m := runtime.Layer{Bytes: step.bytes, Folders: map[string]int64{"/data": step.bytes}}
		if l.note(m, at) != step.changed {
			t.Errorf("step %d: changed: %t", i, !step.changed)
		}
		if step.want == "" && l.warning != "" || !strings.Contains(l.warning, step.want) {
			t.Errorf("step %d: %q, want %q", i, l.warning, step.want)
		}
	}
	for _, want := range []string{"mostly /data", "persistent: {}", "mountPath: /data}"} {
		if !strings.Contains(l.warning, want) {
			t.Errorf("%q lacks %q", l.warning, want)
		}
	}
}
