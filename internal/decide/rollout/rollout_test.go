// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
)

// traffic returns revisions a, b, c, ... with these percentages; the one at tagged has a tag, if it is one.
func traffic(tagged int, percent ...int32) (list []v1alpha1.Revision) {
	for i, p := range percent {
		r := v1alpha1.Revision{Revision: string(rune('a' + i)), Percent: p}
		if i == tagged {
			r.Tag = "canary"
		}
		list = append(list, r)
	}
	return list
}

func TestTheTaggedOrLastRevisionIsRolledOut(t *testing.T) {
	two := traffic(-1, 90, 10)
	for _, c := range []struct {
		traffic []v1alpha1.Revision
		name    string
		want    int
		err     string
	}{
		{two, "", 1, ""}, {two, "a", 0, ""}, {traffic(0, 10, 90), "", 0, ""}, {traffic(1, 50, 10, 40), "", 1, ""},
		{two, "z", 0, `no revision "z": name one of a, b`}, {traffic(0, 100), "", 0, "a rollout needs two"},
		{nil, "", 0, "0 revisions"},
		{append(traffic(0, 50), v1alpha1.Revision{Revision: "b", Percent: 50, Tag: "other"}), "", 0, "several"},
	} {
		got, err := Candidate(c.traffic, c.name)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s, %q: %d, %v; want %d, %s", Describe(c.traffic), c.name, got, err, c.want, c.err)
		}
	}
}

func TestPromotionLeavesTheOthersTheirProportions(t *testing.T) {
	for _, c := range []struct {
		from      []v1alpha1.Revision
		candidate int
		percent   int
		want      string
	}{
		{traffic(1, 90, 10), 1, 100, "a 0 %, b 100 %"},
		{traffic(1, 90, 10), 1, 50, "a 50 %, b 50 %"},
		{traffic(1, 0, 100), 1, 25, "a 75 %, b 25 %"},
		{traffic(0, 100, 0), 0, 40, "a 40 %, b 60 %"},
		{traffic(-1, 60, 30, 10), 2, 40, "a 40 %, b 20 %, c 40 %"},
		{traffic(-1, 33, 33, 34), 2, 1, "a 50 %, b 49 %, c 1 %"},
		{traffic(-1, 98, 1, 1), 2, 90, "a 10 %, b 0 %, c 90 %"},
	} {
		next := Promote(c.from, c.candidate, c.percent)
		if got := Describe(next); got != c.want {
			t.Errorf("%s, %d %%: %s, want %s", Describe(c.from), c.percent, got, c.want)
		}
	}
	from := traffic(1, 90, 10)
	if next := Promote(from, 1, 100); next[1].Tag != "canary" || from[1].Percent != 10 {
		t.Errorf("%+v of %+v", next, from)
	}
}

func TestEveryPromotionAddsUpToAHundred(t *testing.T) {
	for a := range int32(101) {
		for b := range 101 - a {
			for percent := range 101 {
				sum := int32(0)
				for i, r := range Promote(traffic(-1, a, b, 100-a-b), 2, percent) {
					if sum += r.Percent; r.Percent < 0 || i == 2 && int(r.Percent) != percent {
						t.Fatalf("%d, %d, %d %%: %+v", a, b, percent, r)
					}
				}
				if sum != 100 {
					t.Fatalf("%d, %d, %d %%: %d", a, b, percent, sum)
				}
			}
		}
	}
}

func TestAbortGivesEverythingToTheRevisionBefore(t *testing.T) {
	for want, from := range map[string][]v1alpha1.Revision{
		"a 100 %, b 0 %": traffic(1, 90, 10), "a 0 %, b 100 %": traffic(0, 10, 90),
		"a 0 %, b 100 %, c 0 %": traffic(2, 20, 30, 50),
	} {
		at, err := Candidate(from, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := Describe(Abort(from, at)); got != want {
			t.Errorf("%s: %s, want %s", fmt.Sprint(from), got, want)
		}
	}
}
