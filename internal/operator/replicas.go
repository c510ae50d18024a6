// SPDX-License-Identifier: Apache-2.0

package operator

// none is a number of replicas that is not there.
const none = -1

// replicasMemory is what spec.replicas, which others write as well as we, has to do with the service's pods. The zero
// value is not usable; see newReplicas.
type replicasMemory struct {
	// acted is the last spec.replicas that was obeyed or written here.
	acted int32
	// desired is how many pods the controller wanted when that was last compared.
	desired int32
	// expected is what the controller will want once it has obeyed; none if nothing is to come.
	expected int32
}

// newReplicas begins with what was the case when the status was last written; observed tells whether it ever was.
func newReplicas(observed bool, desired int32) replicasMemory {
	if !observed {
		return replicasMemory{none, none, none}
	}
	return replicasMemory{acted: desired, desired: none, expected: none}
}

// decide tells what to do about spec.replicas (none if it is not set): have the controller scale, or write another
// number into the spec; none for nothing. desired is how many pods the controller wants now, allowed how many it will
// want if it is told to want spec.
//
// What others wrote is obeyed once. What the controller wants is written when that changes, and not whenever it differs
// from the spec: an autoscaler that wants more than maxReplicas allows would be answered for ever.
func (m *replicasMemory) decide(spec, desired, allowed int32) (scale, write int32) {
	changed := desired != m.desired && desired != m.expected
	// One that has just become the leader takes all pods that it finds for wanted: also the one more that a rollout has.
	found := m.acted != none && m.desired == none && spec > 0 && desired > 0 && spec != desired
	switch {
	case spec != none && spec != m.acted || found:
		m.acted, m.desired, m.expected = spec, desired, allowed
		if spec == desired {
			return none, none
		}
		if desired > 0 {
			// A service that is awake has obeyed as soon as it is told. If it is seen to want as many as before all the same,
			// it has changed its mind: a client woke it just when it was put to sleep.
			m.desired, m.expected = allowed, none
		}
		return spec, none
	case spec == none || changed && spec != desired:
		return none, desired
	}
	if desired == m.expected {
		m.expected = none
	}
	m.desired = desired
	return none, none
}

// wrote takes that a number was written into the spec.
func (m *replicasMemory) wrote(n int32) { *m = replicasMemory{n, n, none} }
