// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
)

// A row says since when wakes are known, if an earlier controller led.
func TestRowSaysWhereItsHistoryBegins(t *testing.T) {
	if r := rowOf(1, status.Status{}); r.History != 0 {
		t.Errorf("of a service that this controller knows from its beginning: %d", r.History)
	}
	if r := rowOf(1, status.Status{HistorySince: time.Unix(1777636920, 5)}); r.History != 1777636920 {
		t.Errorf("of an older service: %d", r.History)
	}
}
