// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWhatIsMissingIsPutBackInOrder(t *testing.T) {
	var log bytes.Buffer
	k := NewKeeper(slog.New(slog.NewTextHandler(&log, nil)), "the gate")
	there := map[string]bool{"a": true}
	var put []string
	part := func(name string) Part {
		return Part{Kind: "route", Name: name, Intact: func() (bool, error) { return there[name], nil },
			Put: func() error { put, there[name] = append(put, name), true; return nil }}
	}
	parts := []Part{part("a"), part("b"), part("c")}
	k.Keep(parts)
	k.Keep(parts)
	if want := []string{"b", "c"}; !slices.Equal(put, want) {
		t.Errorf("put back %v, want %v", put, want)
	}
	k.Count("program")
	if got, want := k.Counts(), map[string]uint64{"route": 2, "program": 1}; !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 2 || !strings.Contains(log.String(), "what the gate needs") {
		t.Errorf("log:\n%s", log.String())
	}
}

func TestErrorIsLoggedOnceUntilItPasses(t *testing.T) {
	var log bytes.Buffer
	k := NewKeeper(slog.New(slog.NewTextHandler(&log, nil)), "the gate")
	failure, intact := errors.New("busy"), false
	parts := []Part{{Kind: "pin", Name: "flows", Intact: func() (bool, error) { return intact, nil },
		Put: func() error { return failure }}}
	for range 3 {
		k.Keep(parts)
	}
	intact = true
	k.Keep(parts)
	intact = false
	k.Keep(parts)
	failure = errors.New("read-only")
	k.Keep(parts)
	if got := strings.Count(log.String(), "cannot put back"); got != 3 || len(k.Counts()) != 0 {
		t.Errorf("%d lines, counted %v:\n%s", got, k.Counts(), log.String())
	}
}

func TestSettingOfADeviceThatIsGoneNeedsNoUpkeep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "forwarding")
	if is, err := SettingIs(file, "1"); !is || err != nil {
		t.Errorf("without the file: %t, %v", is, err)
	}
	if err := os.WriteFile(file, []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]bool{"1": true, "0": false} {
		if is, err := SettingIs(file, value); is != want || err != nil {
			t.Errorf("%s: %t, %v, want %t", value, is, err, want)
		}
	}
	if _, err := SettingIs(filepath.Dir(file), "1"); err == nil {
		t.Error("a folder has a value")
	}
}
