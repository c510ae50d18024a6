// SPDX-License-Identifier: Apache-2.0

package kube

import "time"

// Bounds of the memory of pods that are gone: late reports arrive within seconds.
const (
	tombstoneAge  = 10 * time.Minute
	maxTombstones = 100_000
)

// tombstones remembers the UIDs of pods that are gone, so that a late report does not resurrect one.
type tombstones struct {
	at    map[string]time.Time
	order []string // oldest first
	// unexplained are the pods whose end was taken for a crash, and that the API server still has: kubelet may say why it
	// has ended one only when the pod's network is gone.
	unexplained map[string]*pod
	// late are the last pods to go, whose logs daemons may still report; next is the place of the next one.
	late [maxLate]*pod
	next int
}

// maxLate is how many pods that went last are remembered for their logs, which come within a second.
const maxLate = 1024

// expectLog remembers a pod that was added, because the end of its log may come after the end of the pod.
func (t *tombstones) expectLog(p *pod) { t.late[t.next%maxLate], t.next = p, t.next+1 }

// lately returns a pod that went lately; nil if there is none with this UID.
func (t *tombstones) lately(uid string) *pod {
	for _, p := range t.late {
		if p != nil && p.rt.ID == uid {
			return p
		}
	}
	return nil
}

func (t *tombstones) add(uid string, now time.Time) {
	if t.at == nil {
		t.at = map[string]time.Time{}
	}
	for len(t.order) > 0 && (len(t.order) >= maxTombstones || now.Sub(t.at[t.order[0]]) > tombstoneAge) {
		delete(t.at, t.order[0])
		delete(t.unexplained, t.order[0])
		t.order = t.order[1:]
	}
	if _, found := t.at[uid]; !found {
		t.at[uid] = now
		t.order = append(t.order, uid)
	}
}

func (t *tombstones) has(uid string) bool {
	_, found := t.at[uid]
	return found
}

// await remembers a pod that was added, and whose end is not explained.
func (t *tombstones) await(p *pod) {
	if t.unexplained == nil {
		t.unexplained = map[string]*pod{}
	}
	t.unexplained[p.rt.ID] = p
}
