// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/wire"
)

func TestPublishedStatesHaveTheValuesOfTheWire(t *testing.T) {
	for state, want := range map[lifecycle.PodState]wire.PodState{
		lifecycle.PodStarting: wire.PodStarting,
		lifecycle.PodServing:  wire.PodServing,
		lifecycle.PodDraining: wire.PodDraining,
	} {
		if wire.PodState(state) != want {
			t.Errorf("%v is %d, on the wire %d", state, state, want)
		}
	}
}

// The ID on the wire must not change: the next controller gives it to the pods that it adopts.
func TestWireIDDependsOnTheRuntimesIDOnly(t *testing.T) {
	if got := wireID("a-1"); got != 0xe61a64190463c246 || wireID("a-2") == got {
		t.Errorf("%#x", got)
	}
}
