// SPDX-License-Identifier: Apache-2.0

package scaling

import "time"

// cpuMeter turns the processor times of pods into their mean use of a core.
type cpuMeter struct {
	at   time.Time
	used map[string]time.Duration // by the pod's UID
}

// observe records the processor times of all pods that serve. It returns the mean use since the last call, in cores per
// pod, of the pods that both calls have. ok is false if there are none.
func (m *cpuMeter) observe(at time.Time, used map[string]time.Duration) (cores float64, ok bool) {
	known := 0
	for uid, now := range used {
		if before, there := m.used[uid]; there && now >= before {
			cores += (now - before).Seconds()
			known++
		}
	}
	passed := at.Sub(m.at).Seconds()
	m.at, m.used = at, used
	if known == 0 || passed <= 0 {
		return 0, false
	}
	return cores / passed / float64(known), true
}
