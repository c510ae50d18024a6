// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"testing"
)

func TestModesTakeTurnsForwardsAndBackwards(t *testing.T) {
	modes := []string{"a", "b", "c"}
	if got := InTurn(modes, 0); !slices.Equal(got, modes) {
		t.Error(got)
	}
	if got := InTurn(modes, 1); !slices.Equal(got, []string{"c", "b", "a"}) || modes[0] != "a" {
		t.Error(got, modes)
	}
}
