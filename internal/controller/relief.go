// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/reservation"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// roomLook is the pause between two checks whether the node of a thawed pod has room for its requests.
const roomLook = 3 * time.Second

// relief stops frozen services on nodes that are short of memory, or of room for the requests of thawed pods. It
// belongs to the loop.
type relief struct {
	loop    *loop
	table   *table
	cluster runtime.Cluster // nil on one machine
	deliver deliver
}

// frozenThere is a service with pods on a node that is short of room.
type frozenThere struct {
	key    v1alpha1.Key
	frozen bool          // all its pods are frozen
	stops  bool          // sleep.onPressure is Stop, and nothing requires a pod of it at present
	ending bool          // it was chosen earlier, and is being stopped
	last   monotime.Time // its last packet
}

// leastRecentlyUsed chooses the service to stop: the frozen one that may be stopped and has the oldest last packet.
// It chooses none while another one is being stopped, because that may suffice.
func leastRecentlyUsed(there []frozenThere) (key v1alpha1.Key, ok bool) {
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

// reservations returns what the frozen pods of a service have given back.
func (r *relief) reservations(s *service) (given reservation.Summary) {
	if r.cluster != nil && len(s.pods) > 0 {
		given = r.cluster.Reservations(s.key)
	}
	return given
}

// relieve stops a frozen service that meets a condition, which frees its resources on a node.
func (r *relief) relieve(node, why string, useful func(*service) bool) {
	var there []frozenThere
	for _, s := range r.table.services {
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
		s := r.table.services[key]
		r.deliver(s, lifecycle.Pressed{Why: why})
		s.pressed = s.machine.State() == lifecycle.Stopping
	}
}

// shortOfMemory handles a daemon's report that its node is short of memory.
func (r *relief) shortOfMemory(node string, m *wire.Memory) {
	where := "the machine"
	if r.cluster != nil {
		where = "node " + node
	}
	r.relieve(node, fmt.Sprintf("%s is short of memory: %s of %s are available", where,
		text.Bytes(int64(m.Available)), text.Bytes(int64(m.Total))), func(*service) bool { return true })
}

// lookForRoom checks from time to time whether the node of a service's pods has room for their requests. While the
// node has no room, it stops frozen services there that keep their requests.
func (r *relief) lookForRoom(s *service) {
	if s.roomLook {
		return
	}
	s.roomLook = true
	r.loop.after(roomLook, func() {
		s.roomLook = false
		if r.table.services[s.key] != s || r.loop.idle() {
			return
		}
		if room := r.reservations(s); room.ShortOn != "" {
			r.relieve(room.ShortOn, room.Short, r.keepsRequests)
			r.lookForRoom(s)
		}
	})
}

// keepsRequests reports whether the frozen pods of a service have kept their requests.
func (r *relief) keepsRequests(s *service) bool {
	given := r.reservations(s)
	for _, q := range requestsOf(&s.spec.Spec) {
		if !math.IsNaN(q) && q > 0 {
			return given.CPU+given.Memory == 0
		}
	}
	return false
}
