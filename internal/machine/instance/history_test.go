// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/forecast"
)

func predicting(name string) *v1alpha1.WangellService {
	s := wants(name)[0]
	s.Spec.Sleep = &v1alpha1.Sleep{Predict: true}
	return s
}

func TestHistoriesOutliveAnInstanceButNotTheirService(t *testing.T) {
	dir := t.TempDir()
	h := newHistories(dir, slog.New(slog.DiscardHandler))
	list := []*v1alpha1.WangellService{predicting("a"), predicting("b"), wants("c")[0]}
	h.follow(list)
	h.record("default/a", "1")
	h.record("default/a", "2")
	h.record("default/b", "3")
	h.record("default/c", "4") // does not ask for it
	h.close()
	again := newHistories(dir, slog.New(slog.DiscardHandler))
	if a, b, c := again.of("default/a"), again.of("default/b"), again.of("default/c"); a != "2" || b != "3" || c != "" {
		t.Errorf("%q, %q, %q", a, b, c)
	}
	again.follow(list[1:])
	again.record("default/a", "5") // its pods are still ending
	again.close()
	if a, b := again.of("default/a"), again.of("default/b"); a != "" || b != "3" {
		t.Errorf("after a was removed: %q, %q", a, b)
	}
	if files, err := os.ReadDir(filepath.Join(dir, "uses")); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
}

func TestHistoryThatCannotBeKeptIsAWarning(t *testing.T) {
	var log strings.Builder
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no folder
		t.Fatal(err)
	}
	h := newHistories(dir, slog.New(slog.NewTextHandler(&log, nil)))
	h.follow([]*v1alpha1.WangellService{predicting("a")})
	h.record("default/a", "1")
	h.close()
	if !strings.Contains(log.String(), "cannot be stored") {
		t.Error(log.String())
	}
}

func TestHistoryIsReadInPart(t *testing.T) {
	dir := t.TempDir()
	h := newHistories(dir, slog.New(slog.DiscardHandler))
	if err := os.MkdirAll(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.file("default/a"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := len(h.of("default/a")); n != forecast.MaxEncoded+1 {
		t.Errorf("%d bytes read", n)
	}
}
