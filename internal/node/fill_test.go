// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/internal/gate"
)

// A table or share that becomes almost full is reported once, and again only after it had room.
func TestAlmostFullTablesAreReported(t *testing.T) {
	w := fillWatch{full: map[string]bool{}}
	var log bytes.Buffer
	for _, used := range []uint32{79, 80, 100, 75, 85, 69, 90} {
		w.check([]gate.Fill{
			{Table: "parked", Flag: "--parked", Used: 1, Size: 100},
			{Table: "flows_per_source", Flag: "--max-flows-per-source", Of: "client 192.0.2.1", Used: used, Size: 100},
		}, slog.New(slog.NewTextHandler(&log, nil)))
	}
	var warned []string
	for _, m := range regexp.MustCompile(`level=WARN.* of="client 192.0.2.1" entries=(\d+) size=100`).
		FindAllStringSubmatch(log.String(), -1) {
		warned = append(warned, m[1])
	}
	if want := []string{"80", "90"}; !slices.Equal(warned, want) || strings.Contains(log.String(), "table=parked") {
		t.Errorf("warned at %q, want %q:\n%s", warned, want, &log)
	}
}
