// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"slices"
	"testing"

	"wangell.loutres.me/internal/gate"
)

// A table that becomes almost full is reported once, and again only after it had room.
func TestAlmostFullTablesAreReported(t *testing.T) {
	w := fillWatch{full: map[string]bool{}}
	var got []string
	for _, used := range []uint32{79, 80, 100, 75, 85, 69, 90} {
		w.check([]gate.Fill{{Table: "parked", Used: used, Size: 100}, {Table: "pods", Used: 1, Size: 100}},
			slog.New(slog.DiscardHandler), func(text string) { got = append(got, text) })
	}
	want := []string{
		"the gate has 80 of at most 100 parked: raise sizes.parked (--parked)",
		"the gate has 90 of at most 100 parked: raise sizes.parked (--parked)",
	}
	if !slices.Equal(got, want) {
		t.Errorf("reported %q, want %q", got, want)
	}
}
