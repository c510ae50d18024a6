// SPDX-License-Identifier: Apache-2.0

package operator

// none stands for no number of replicas.
const none = -1

// replicasMemory relates spec.replicas, which others write, too, to the number of pods that the controller wants.
// Create one with newReplicas.
type replicasMemory struct {
	// acted is the last spec.replicas that the operator obeyed or wrote.
	acted int32
	// desired is the number of pods that the controller wanted at the last comparison.
	desired int32
	// expected is the number that the controller will want once it has obeyed; none if nothing is pending.
	expected int32
}

// newReplicas begins with the last written status; observed reports whether there is one.
func newReplicas(observed bool, desired int32) replicasMemory {
	if !observed {
		return replicasMemory{none, none, none}
	}
	return replicasMemory{acted: desired, desired: none, expected: none}
}

// decide returns the number to scale the controller to, or the number to write into spec.replicas; none for neither.
// spec is spec.replicas, or none; desired is the number that the controller wants now, and allowed the one it will
// want if it is scaled to spec.
//
// A number that others wrote is obeyed once. The controller's number is written when it changes, not whenever the two
// differ: otherwise an autoscaler that wants more than maxReplicas would never end the exchange.
func (m *replicasMemory) decide(spec, desired, allowed int32) (scale, write int32) {
	changed := desired != m.desired && desired != m.expected
	// A new leader counts every pod that it finds as wanted, even the surplus pod of a rollout.
	found := m.acted != none && m.desired == none && spec > 0 && desired > 0 && spec != desired
	switch {
	case spec != none && spec != m.acted || found:
		m.acted, m.desired, m.expected = spec, desired, allowed
		if spec == desired {
			return none, none
		}
		if desired > 0 {
			// A service that is awake obeys at once. If it still wants as many as before, a client woke it just when
			// it was put to sleep.
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

// wrote records that a number was written into the spec.
func (m *replicasMemory) wrote(n int32) { *m = replicasMemory{n, n, none} }
