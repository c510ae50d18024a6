// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/test/testutil/e2e"
)

// A client that exceeds a budget of wakes is served, and ps names its prefix at the service that it asked for. So does
// it name a table that is almost full.
func TestPressureShows(t *testing.T) {
	l := newLab(t, 1)
	u := l.startWith(t, manifest(service{name: "a"}, service{name: "b"}), "-f", "-",
		"--wake-budget-source", "1,0.001", "--services", "2")
	for _, name := range []string{"a", "b"} {
		e2e.MustAsk(t, l.Client(), l.address(t, name))
	}
	prefix, err := l.Client().Addr.Prefix(24)
	if err != nil {
		t.Fatal(err)
	}
	want := "clients in " + prefix.String() + " exceed their budget of wakes: they have to prove where they are"
	e2e.Eventually(t, "ps reports the client", func() (bool, string) {
		st := l.service(t, "b")
		return st.Pressure.Reason == v1alpha1.EventWakesLimited && strings.Contains(st.Service.Status.Message, want),
			st.Service.Status.Message
	})
	full := ": the gate's table services is almost full: 2 of 2 entries (--services)\n"
	e2e.Eventually(t, "ps reports the table", func() (bool, string) {
		ps := l.must(t, "ps")
		return strings.Contains(ps, "\nTableAlmostFull: node ") && strings.HasSuffix(ps, full), ps
	})
	if said := u.said(); !strings.Contains(said, want) || !strings.Contains(said, strings.TrimSpace(full)) {
		t.Error("the log does not report both")
	}
}
