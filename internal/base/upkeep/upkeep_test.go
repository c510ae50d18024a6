// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
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
