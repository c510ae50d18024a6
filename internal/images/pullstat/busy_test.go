// SPDX-License-Identifier: Apache-2.0

package pullstat

import "testing"

func TestBusyTimesOfRealPullsAreThoseOfTheirPhases(t *testing.T) {
	for name, r := range recordings(t) {
		whole := analysed(t, r)
		r.Stages = nil // no second pass is needed
		fetch, unpack, err := Busy(r)
		if err != nil {
			t.Fatal(name, err)
		}
		longest, unpacked := 0.0, 0.0
		for _, l := range whole.Layers {
			longest = max(longest, l.Phases[Fetch])
			unpacked += l.Phases[Decompress] + l.Phases[Hash] + l.Phases[Apply]
		}
		if fetch < longest || fetch > whole.Pull {
			t.Errorf("%s: downloading for %v s: the longest download took %v s, the pull %v s", name, fetch, longest, whole.Pull)
		}
		// One layer was unpacked after the other, so that the sum is a lower bound.
		if unpack < unpacked-1e-6 || unpack > whole.Pull {
			t.Errorf("%s: unpacking for %v s: the layers took %v s, the pull %v s", name, unpack, unpacked, whole.Pull)
		}
	}
}

func TestTimeThatSeveralSpansCoverCountsOnce(t *testing.T) {
	for _, c := range []struct {
		spans []Span
		want  float64
	}{
		{nil, 0},
		{[]Span{{Fetch, 5, 6}, {Fetch, 1, 3}}, 3},
		{[]Span{{Fetch, 1, 4}, {Fetch, 2, 3}, {Fetch, 3, 5}, {Fetch, 7, 7}}, 4},
	} {
		if got := covered(c.spans); !about(got, c.want) {
			t.Errorf("%v: %v s, want %v", c.spans, got, c.want)
		}
	}
}
