// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "testing"

// What a start waits for is known until its process runs, and only while the service wakes.
func TestStartWaitsWhileTheServiceWakes(t *testing.T) {
	m := New(testSpec, 0)
	step := func(second float64, e Event, want string) {
		t.Helper()
		m.Step(e, at(second))
		if got := m.StartWaits(); got != want {
			t.Errorf("after %T: waits for %q, want %q", e, got, want)
		}
	}
	step(0, WakeAsked{Parked: 1}, "")
	step(1, Waits{1, "a volume"}, "a volume")
	step(2, Waits{1, "an image"}, "an image")
	step(3, PhaseEnded{1, PhaseStarted, at(3)}, "")
	step(4, Listening{Ref: 1, At: at(4)}, "")
}
