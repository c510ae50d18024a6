// SPDX-License-Identifier: Apache-2.0

package gate

import "sync"

// doubts tracks whether wakes led to connections.
type doubts struct {
	mu sync.Mutex
	of map[uint32]visits // by the service's index
}

// visits is the gate's record of a service since its pods were last gone.
type visits struct {
	wakes uint64 // its count of wakes then
	used  bool   // a connection was established to a pod that is gone already
	front uint64 // connections of its front then
}

// forget forgets a service whose index is reused.
func (d *doubts) forget(service uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, service)
}

// podGone records that a pod is gone and whether it had connections. If it was the last one, podGone reports whether
// this gate woke the service in vain, that is without any connection, given the counts of wakes and of the front's
// connections.
func (d *doubts) podGone(service uint32, used, last bool, wakes, front uint64) (inVain bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v := d.of[service]
	v.used = v.used || used
	if last {
		inVain = !v.used && front == v.front && wakes != v.wakes
		v = visits{wakes: wakes, front: front}
	}
	d.of[service] = v
	return inVain
}
