// SPDX-License-Identifier: Apache-2.0

package operator

import "testing"

func TestDecideScalesOrWritesOnce(t *testing.T) {
	type step struct {
		spec, desired int32
		scale, write  int32
		failed        bool // the write does not get through
	}
	for name, c := range map[string]struct {
		begin replicasMemory
		max   int32
		steps []step
	}{
		"new, nothing asked for": {newReplicas(false, 0), 1, []step{
			{none, 0, none, 0, false}, {0, 0, none, none, false},
		}},
		"new with replicas": {newReplicas(false, 0), 3, []step{
			{2, 0, 2, none, false}, {2, 0, none, none, false}, {2, 2, none, none, false},
		}},
		"woken and asleep again": {newReplicas(false, 0), 1, []step{
			{0, 0, none, none, false}, {0, 1, none, 1, false}, {1, 1, none, none, false}, {1, 0, none, 0, false},
			{0, 0, none, none, false},
		}},
		"our echo comes late": {newReplicas(false, 0), 1, []step{
			{0, 0, none, none, false}, {0, 1, none, 1, false}, {1, 1, none, none, false}, {1, 1, none, none, false},
		}},
		"a write that failed is tried again": {newReplicas(false, 0), 1, []step{
			{0, 0, none, none, false}, {0, 1, none, 1, true}, {0, 1, none, 1, false}, {1, 1, none, none, false},
		}},
		"kubectl scale to 0, then to 2": {newReplicas(true, 1), 3, []step{
			{1, 1, none, none, false}, {0, 1, 0, none, false}, {0, 0, none, none, false}, {2, 0, 2, none, false},
			{2, 2, none, none, false},
		}},
		"more than is allowed is not answered": {newReplicas(true, 1), 3, []step{
			{1, 1, none, none, false}, {9, 1, 9, none, false}, {9, 3, none, none, false}, {9, 3, none, none, false},
			{9, 2, none, 2, false}, {2, 2, none, none, false}, // our own autoscaler
		}},
		"woken at once when scaled to 0": {newReplicas(true, 1), 3, []step{
			{1, 1, none, none, false}, {0, 1, 0, none, false}, {0, 1, none, 1, false}, {1, 1, none, none, false},
		}},
		"scaled while it goes to sleep": {newReplicas(true, 1), 3, []step{
			{1, 1, none, none, false}, {0, 1, 0, none, false}, {0, 0, none, none, false}, {2, 0, 2, none, false},
			{2, 0, none, none, false}, {2, 2, none, none, false},
		}},
		"scaled while nobody led":  {newReplicas(true, 1), 5, []step{{4, 1, 4, none, false}, {4, 4, none, none, false}}},
		"slept while nobody wrote": {newReplicas(true, 1), 1, []step{{1, 0, none, 0, false}}},
		"more found than wanted": {newReplicas(true, 1), 3,
			[]step{{1, 2, 1, none, false}, {1, 1, none, none, false}, {1, 2, none, 2, false}}},
		"taken out of the spec": {newReplicas(true, 1), 1, []step{{1, 1, none, none, false}, {none, 1, none, 1, false}}},
	} {
		m := c.begin
		for i, s := range c.steps {
			scale, write := m.decide(s.spec, s.desired, min(s.spec, c.max))
			if scale != s.scale || write != s.write {
				t.Errorf("%s, step %d: scale %d and write %d, want %d and %d", name, i, scale, write, s.scale, s.write)
			}
			if write != none && !s.failed {
				m.wrote(write)
			}
		}
	}
}
