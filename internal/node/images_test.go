// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"testing"

	"wangell.loutres.me/internal/images/prefetch"
	"wangell.loutres.me/internal/wire"
)

// The daemon keeps its images until the next set is there as a whole.
func TestASetOfImagesIsUsedOnceItIsComplete(t *testing.T) {
	i := &images{keeper: prefetch.New(prefetch.Config{})}
	set := func(prefix string, n int) (out []wire.WantedImage) {
		for k := range n {
			out = append(out, wire.WantedImage{Ref: fmt.Sprintf("%s%d", prefix, k), Policy: wire.ImageIfNotPresent})
		}
		return out
	}
	check := func(what, prefix string, n int) {
		t.Helper()
		got := i.keeper.Reports()
		if len(got) != n || slices.ContainsFunc(got, func(r wire.ImageReport) bool { return r.Ref[:1] != prefix }) {
			t.Errorf("%s: %d images, want %d of %s", what, len(got), n, prefix)
		}
	}
	a, b := wire.NewImages(1, set("a", 100)), wire.NewImages(2, set("b", 150))
	i.receive(a[0])
	check("half a set", "a", 0)
	i.receive(a[1])
	check("a set", "a", 100)
	i.receive(b[0])
	i.receive(b[2])
	check("a set with a gap", "a", 100)
	for _, m := range b {
		i.receive(m)
	}
	check("the next set", "b", 150)
	i.receive(a[0])
	i.receive(a[1])
	check("an older set", "b", 150)
	sent := 0
	i.beginSession(func(m wire.Message) { sent += len(m.(*wire.ImageReports).Images) })
	if sent != 150 {
		t.Errorf("%d images reported to a new session", sent)
	}
	i.receive(wire.NewImages(1, nil)[0])
	check("an empty set of another controller", "b", 0)
}

// A set is used once all its pieces have come in order, and an older one never.
func TestASetIsUsedWhenItIsWhole(t *testing.T) {
	var p pieces[string]
	for _, c := range []struct {
		generation uint64
		piece, of  uint16
		item       string
		want       []string // nil: not whole
	}{
		{1, 0, 2, "a", nil}, {1, 1, 2, "b", []string{"a", "b"}}, {1, 1, 2, "b", nil},
		{2, 1, 2, "c", nil}, {2, 0, 3, "c", nil}, {2, 2, 3, "d", nil}, {2, 1, 3, "d", nil},
		{3, 0, 1, "e", []string{"e"}}, {2, 0, 1, "old", nil}, {4, 0, 2, "f", nil}, {5, 0, 1, "g", []string{"g"}},
	} {
		set, whole := p.add(c.generation, c.piece, c.of, []string{c.item})
		if whole != (c.want != nil) || !slices.Equal(set, c.want) {
			t.Errorf("piece %d of %d of generation %d: %v, %v; want %v", c.piece, c.of, c.generation, set, whole, c.want)
		}
	}
}
