// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

// service is a service of the table, or a port of one that has several, guarded by mu, which is held while the gate is
// changed for the service, so that messages and kernel events of one service are handled one at a time. The daemon's mu
// is held as well when addr or announce change.
type service struct {
	mu           groupMutex
	group        *group // nil if the service has one port
	addr         netip.AddrPort
	name         string
	idle         time.Duration // idle timeout; 0 if the service never sleeps
	freezeAfter  time.Duration // time without a request to its programs after which it is reported idle; 0: idle applies
	freezeSeq    uint64        // of the last Freeze; 0 if none came in this session
	generation   uint64        // of the last Backends; 0 if none came in this session
	wakes        uint64        // wakes asked for since the daemon started
	pods         map[uint64]*pod
	crowd        crowd
	countersRead monotime.Time  // when the counters were read last
	idleReported monotime.Time  // when Idle was sent last; zero after a packet
	awaitedUntil monotime.Time  // a client waits for an answer; not looked at again until then
	announce     bool           // a node answers ARP for the address
	usage        bool           // the controller wants the usage of its pods
	requests     *wire.Requests // how requests are balanced; nil if connections are balanced
	answers      answers        // of requests that have no pod
	front        front          // of the Envoy that serves, or is to serve
	oldFront     front          // of one that it has replaced or is to replace: it keeps its clients
	frontPort    uint16         // of both; 0 until one was chosen
	elsewhere    []uint64       // IDs of fronts on other nodes that the gate has
	router       revisionRouter // of a service with traffic
	traffic      envoy.Traffic  // where its requests go
	called       monotime.Time  // when Caller was sent last
	entry        wire.Service   // as the table has it
}

// pod is a pod of a service, guarded by the service's mu.
type pod struct {
	id    uint64
	addr  netip.AddrPort
	netns string
	// home reports that the pod is on this node. It is false for an adopted pod until the controller has listed it.
	home    bool
	state   wire.PodState // as of the last Backends; 0 if none listed the pod in this session
	serving bool          // the gate gives it new flows
	// restarting: the pod has stopped listening, or a process of it ended, and it gets no new flow until it listens again.
	restarting   bool
	retrying     bool          // not home: it was found deaf, and gets new flows again after a pause
	pause        time.Duration // the last such pause
	since        monotime.Time // when it began to serve
	watch        *listenWatch  // until it listens
	listened     bool          // home: it was seen to listen, and does as far as is known
	probe        string        // home: its readinessProbe, as the controller sent it; empty if there is none
	runtimeID    string        // home: the container runtime's ID, if it has a probe
	began        time.Time     // when it was added here
	probes       *probes       // home: from the moment when it listens, if it has a probe
	trace        wire.Trace
	lastReported wire.PodStats // counters that the controller has
	load         reportedLoad  // home: open flows that the other nodes have
	own          readings      // not home: its open flows from this node
	drained      uint64        // generation of the Backends that drained it
	settling     bool          // drained, and handshakes that began before may still complete
	answers      answers       // that came through this node
	direct       *sockDiag     // home, behind a front: its connections; nil until they were counted
	memory       podMemory     // home, of a service that is frozen
}

// idleAfter is the time without a packet after which the service is reported idle; 0 for never. s.mu is held.
func (s *service) idleAfter() time.Duration { return cmp.Or(s.freezeAfter, s.idle) }

// serving returns the number of pods that get new flows. s.mu is held.
func (s *service) serving() int {
	n := 0
	for _, p := range s.pods {
		if p.serving {
			n++
		}
	}
	return n
}

// leader returns the pod whose wake gets credit for the SYNs released to p: while SYNs are kept for several pods, the
// first one that served, otherwise p. s.mu is held.
func (s *service) leader(p *pod) *pod {
	if first := s.pods[s.crowd.first]; first != nil && s.crowd.until != 0 {
		return first
	}
	return p
}

// splits reports whether the service has no pods of its own, and sends its requests to other services. s.mu is held.
func (s *service) splits() bool { return s.requests != nil && !s.requests.Traffic.Empty() }

// lastPacket returns when a pod was last used at any port of the service: see gate.PodCounters, but not before it began
// to serve. s.mu is held.
func (s *service) lastPacket(id uint64, c gate.PodCounters) monotime.Time {
	_, since := s.open(id)
	return max(c.LastPacket, since)
}

// describe names a pod in errors.
func describe(a netip.AddrPort, id uint64) string { return fmt.Sprintf("pod %d of %v", id, a) }
