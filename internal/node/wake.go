// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"time"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/wire"
)

// How soon after a wake was asked for it is looked whether more clients came, for the first time; each further look is
// after twice that time, up to the longest.
const (
	firstLook   = 4 * time.Millisecond
	longestLook = time.Second
)

// wake asks the controller for a pod.
func (d *daemon) wake(a netip.AddrPort, seen monotime.Time) {
	s := d.service(a)
	if s == nil {
		return
	}
	s.mu.Lock()
	s.wakes++
	seq := s.wakes
	s.mu.Unlock()
	if d.cri != nil {
		d.cri.Hurry()
	}
	m := wire.Wake{Service: a, Seq: seq, SYNSeen: seen, Noticed: monotime.Now(), Parked: d.gate.ServiceCounters(a).ParkedNow}
	d.send(&m)
	d.watchers.Go(func() { d.lookAgain(s, m) })
}

// lookAgain tells the controller, as long as clients wait, when more of them do: the gate tells of the first one only, and
// a crowd may need several pods. m is what was told.
func (d *daemon) lookAgain(s *service, m wire.Wake) {
	for pause := firstLook; ; pause = min(2*pause, longestLook) {
		select {
		case <-time.After(pause):
		case <-d.ctx.Done():
			return
		}
		s.mu.Lock()
		over := s.wakes != m.Seq
		s.mu.Unlock()
		parked := d.gate.ServiceCounters(m.Service).ParkedNow
		if over || parked == 0 || d.service(m.Service) != s {
			return
		}
		if parked > m.Parked {
			m.Parked = parked
			again := m
			d.send(&again)
		}
	}
}
