// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "wangell.loutres.me/internal/base/monotime"

// nextDeadline returns the earliest time at which something has to be done; zero for none.
func (m *Machine) nextDeadline(now monotime.Time) monotime.Time {
	var first monotime.Time
	at := func(t monotime.Time) {
		if t != 0 && (first == 0 || t < first) {
			first = t
		}
	}
	later := func(t monotime.Time) {
		if t > now {
			at(t)
		}
	}
	for _, p := range m.pods {
		at(p.deadline)
	}
	if m.deleted {
		return first
	}
	at(m.surplusAt)
	if m.state == Warm {
		at(m.nextPort())
	}
	if m.state == Warm && m.allFrozen() {
		at(m.freeze.stopAt)
	}
	if m.clientsWait() {
		at(m.start.deadline)
	}
	if (m.state == Waking || m.state == Warm) && m.missing() > 0 && !m.blocked() {
		later(m.start.after)
	}
	if m.spec.Min > 0 && (m.state == Cold || m.state == Failed) {
		later(max(m.start.after, m.backoff.wakeRetry))
	}
	return first
}
