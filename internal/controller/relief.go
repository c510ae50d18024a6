// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"wangell.loutres.me/internal/bytesize"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// roomLook is the pause between two checks whether the node of a thawed pod has room for its requests.
const roomLook = 3 * time.Second

// frozenThere is a service with pods on a node that is short of room.
type frozenThere struct {
	key    runtime.Key
	frozen bool          // all its pods are frozen
	stops  bool          // sleep.onPressure is Stop, and nothing requires a pod of it at present
	ending bool          // it was chosen earlier, and is being stopped
	last   monotime.Time // its last packet
}

// leastRecentlyUsed chooses the service to stop: the frozen one that may be stopped and has the oldest last packet.
// It chooses none while another one is being stopped, because that may suffice.
func leastRecentlyUsed(there []frozenThere) (key runtime.Key, ok bool) {
	if slices.ContainsFunc(there, func(s frozenThere) bool { return s.ending }) {
		return "", false
	}
	there = slices.DeleteFunc(slices.Clone(there), func(s frozenThere) bool { return !s.frozen || !s.stops })
	if len(there) == 0 {
		return "", false
	}
	return slices.MinFunc(there, func(a, b frozenThere) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.key, b.key))
	}).key, true
}

// relieve stops a frozen service that meets a condition, which frees its resources on a node.
func (f *freezer) relieve(node, why string, useful func(*service) bool) {
	var there []frozenThere
	for _, s := range f.table.services {
		if !slices.ContainsFunc(s.pods, func(p *pod) bool { return p.node == node }) {
			continue
		}
		state := s.machine.State()
		stops := s.spec.Spec.StopsUnderPressure() && s.foresight.wanted == "" && useful(s)
		there = append(there, frozenThere{
			key: s.key, frozen: state == lifecycle.Frozen, stops: stops,
			ending: s.pressed && state == lifecycle.Stopping, last: s.lastPacket,
		})
	}
	if key, ok := leastRecentlyUsed(there); ok {
		s := f.table.services[key]
		f.deliver(s, lifecycle.Pressed{Why: why})
		s.pressed = s.machine.State() == lifecycle.Stopping
	}
}

// shortOfMemory handles a daemon's report that its node is short of memory.
func (f *freezer) shortOfMemory(node string, m *wire.Memory) {
	where := "the machine"
	if f.cluster != nil {
		where = "node " + node
	}
	f.relieve(node, fmt.Sprintf("%s is short of memory: %s of %s are available", where,
		bytesize.Format(int64(m.Available)), bytesize.Format(int64(m.Total))), func(*service) bool { return true })
}

// lookForRoom checks from time to time whether the node of a service's pods has room for their requests. While the
// node has no room, it stops frozen services there that keep their requests.
func (f *freezer) lookForRoom(s *service) {
	if s.roomLook {
		return
	}
	s.roomLook = true
	f.loop.after(roomLook, func() {
		s.roomLook = false
		if f.table.services[s.key] != s || f.loop.idle() {
			return
		}
		if r := f.reservations(s); r.ShortOn != "" {
			f.relieve(r.ShortOn, r.Short, f.keepsRequests)
			f.lookForRoom(s)
		}
	})
}

// keepsRequests reports whether the frozen pods of a service have kept their requests.
func (f *freezer) keepsRequests(s *service) bool {
	r := f.reservations(s)
	for _, q := range requestsOf(&s.spec.Spec) {
		if !math.IsNaN(q) && q > 0 {
			return r.CPU+r.Memory == 0
		}
	}
	return false
}
