// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// Each announcement is repeated after each pause, whenever the goroutine that repeats them comes to it.
func TestAnnouncementsAreRepeatedAfterEachPause(t *testing.T) {
	a, b := netip.MustParseAddr("10.46.0.1"), netip.MustParseAddr("10.46.0.2")
	begin := time.Unix(100, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	var r repeats
	if !r.empty() {
		t.Fatal("new repeats are not empty")
	}
	r.push(0, []netip.Addr{a}, at(0))
	r.push(0, []netip.Addr{b}, at(150))
	for _, step := range []struct {
		now  int
		due  []netip.Addr
		next int // 0: none
	}{
		{199, nil, 200},
		{210, []netip.Addr{a}, 350},
		{360, []netip.Addr{b}, 1210},
		{1209, nil, 1210},
		{1500, []netip.Addr{a, b}, 0},
	} {
		due, next := r.take(at(step.now)), r.next()
		want := time.Time{}
		if step.next > 0 {
			want = at(step.next)
		}
		if !slices.Equal(due, step.due) || !next.Equal(want) {
			t.Fatalf("at %d ms: due %v, next %v, want %v, %v", step.now, due, next, step.due, want)
		}
	}
	if !r.empty() {
		t.Error("repeats are left")
	}
}
