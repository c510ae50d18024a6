// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/controller/images"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// receiver handles what daemons send. It belongs to the loop.
type receiver struct {
	engine    *engine
	nodes     *nodes
	relay     *relay
	blobs     *images.Blobs // nil on one machine, where there is no mirror
	inspector *inspector
}

// joined handles a daemon that has connected.
func (r *receiver) joined(p wire.Peer) {
	r.engine.daemons.joined(p)
	r.nodes.joined(p)
	r.engine.publisher.welcome(p)
	r.relay.welcome(p)
	r.engine.prefetch.Joined(p)
}

// left handles a daemon that has disconnected.
func (r *receiver) left(p wire.Peer) {
	r.engine.daemons.left(p)
	r.engine.publisher.feed.leave(p)
	r.nodes.left(p)
	r.engine.prefetch.Left(p)
	r.blobs.Left(p)
	r.inspector.left(p)
	for _, s := range r.engine.table.services {
		delete(s.idle, p.Node)
		s.forgetOpen(p.Node)
	}
	r.engine.dropAlerts(p)
}

// receive handles a message.
func (r *receiver) receive(from wire.Peer, m wire.Message) {
	e := r.engine
	switch m := m.(type) {
	case *wire.Node:
		r.nodes.describe(from, m)
	case *wire.TagReady:
		r.nodes.describeTags(from, m)
	case *wire.PodReport:
		r.nodes.whenAccepted(from, func() { r.podReport(from, m) })
	case *wire.PodLog:
		if e.cluster != nil {
			e.cluster.ReportLog(runtime.PodLog{PodID: m.UID, Container: m.Container, Node: from.Node, Text: m.Text})
		}
	case *wire.Wake:
		r.wake(from, m)
	case *wire.Listening:
		if p := r.findAtHome(from, m.Service, m.PodID); p != nil {
			e.step(p.service, lifecycle.Listening{Ref: p.ref, At: m.At, Port: p.service.portAt(m.Service)})
		}
	case *wire.Unready:
		if p := r.findAtHome(from, m.Service, m.PodID); p != nil {
			e.step(p.service, lifecycle.Unready{
				Ref: p.ref, At: m.At, Answer: m.Answer,
				Failed: m.Failed && e.cluster == nil, // in a cluster, kubelet restarts the container
			})
		}
	case *wire.Sockets:
		if p := r.findAtHome(from, m.Service, m.PodID); p != nil {
			e.step(p.service, lifecycle.Sockets{Ref: p.ref, At: m.At})
		}
	case *wire.Deaf:
		if p := r.findAtHome(from, m.Service, m.PodID); p != nil {
			e.step(p.service, lifecycle.Deaf{Ref: p.ref, Port: p.service.portAt(m.Service)})
		}
	case *wire.Trace:
		if p := r.find(from, m.Service, m.PodID); p != nil {
			e.step(p.service, lifecycle.Trace{
				Ref: p.ref, Released: m.Released, FirstSYNACK: m.FirstSYNACK, FirstByte: m.FirstByte,
				ReleasedN: m.ReleasedN,
			})
		}
	case *wire.Quiet:
		if p := r.findAtHome(from, m.Service, m.PodID); p != nil && p.quietFrom != 0 && m.Generation >= p.quietFrom {
			e.step(p.service, lifecycle.Quiet{
				Ref: p.ref, Generation: m.Generation, LastPacket: m.LastPacket, OpenFlows: m.OpenFlows,
			})
		}
	case *wire.Idle:
		if s := e.table.byAddr[m.Service]; s != nil && e.held[s.key] == 0 { // the daemon repeats it
			now := monotime.Now()
			if ev, ok := s.noteIdle(from.Node, idleNode{at: now, lastPacket: m.LastPacket}, now); ok {
				e.freezer.idle(s, ev)
			}
		}
	case *wire.Frozen:
		if p := r.findAtHome(from, m.Service, m.PodID); p != nil {
			e.freezer.report(p, m)
		}
	case *wire.Caller:
		if s := e.table.byAddr[m.Service]; s != nil && e.caller != nil {
			e.caller(s.key, *m)
		}
	case *wire.Memory:
		e.relief.shortOfMemory(from.Node, m)
	case *wire.Denied:
		if s := e.table.byAddr[m.Service]; s != nil {
			e.noteDenied(s, from.Node, m)
		}
	case *wire.Alert:
		e.noteAlert(from, m)
	case *wire.GateState:
		r.inspector.gateState(from, m)
	case *wire.Connected:
		r.inspector.connections(from, m)
	case *wire.Usage:
		for _, u := range m.Pods {
			if p := r.findAtHome(from, u.Service, u.PodID); p != nil {
				p.usage.add(runtime.Usage{CPU: time.Duration(u.CPU), Memory: u.Memory, At: u.At})
			}
		}
	case *wire.ImageReports:
		e.prefetch.Reported(from, m)
	case *wire.ImagePulled:
		e.prefetch.Pulled(from, m)
	case *wire.Unreadable:
		r.unreadable(from, m)
	case *wire.Mirror:
		r.blobs.Joined(from, m)
	case *wire.Blobs:
		r.blobs.Reported(from, m, time.Now())
	case *wire.Loads:
		for _, l := range m.Pods {
			r.relay.add(from, l)
		}
	case *wire.Answers:
		for _, a := range m.Pods {
			r.answers(from, m.At, a)
		}
	case *wire.Stats:
		for _, st := range m.Pods {
			r.stats(from, st)
		}
	}
}

// wake handles a request to wake a service. It is dropped before the services are known, and by a retired controller:
// the daemon repeats it once it has the next controller's table of services.
func (r *receiver) wake(from wire.Peer, m *wire.Wake) {
	e := r.engine
	s := e.table.byAddr[m.Service]
	switch {
	case !e.synced || e.loop.retired:
	case s == nil:
		e.daemons.send(from.ID, &wire.Refuse{Service: m.Service, Reason: "there is no such service"})
	case s.splits(): // the daemon had another version of it, and waits for Envoy now
	default:
		s.lastPacket = max(s.lastPacket, m.SYNSeen)
		if s.askers == nil {
			s.askers = map[uint64]bool{}
		}
		s.askers[from.ID] = true
		e.step(s, lifecycle.WakeAsked{
			Seq: m.Seq, SYNSeen: m.SYNSeen, Noticed: m.Noticed, Parked: m.Parked, Port: s.portAt(m.Service),
		})
		e.planner.used(s, true)
	}
}

// find returns the pod that a daemon refers to. If there is none, that daemon gets the list of pods, and so forgets
// the pod. The others get nothing: a daemon could refer to what there is not all the time.
func (r *receiver) find(from wire.Peer, addr netip.AddrPort, id uint64) *pod {
	p, s := r.engine.table.byWire[id], r.engine.table.byAddr[addr]
	if p != nil && p.service == s {
		return p
	}
	if s != nil {
		r.engine.publisher.repeat(s, from)
	}
	return nil
}

// findAtHome is find for reports that count only from the pod's home node; it returns nil for any other node.
func (r *receiver) findAtHome(from wire.Peer, addr netip.AddrPort, id uint64) *pod {
	if p := r.find(from, addr, id); p != nil && p.node == from.Node {
		return p
	}
	return nil
}

// stats handles a pod's counters. Nodes other than the pod's home node report which pods their gates have.
func (r *receiver) stats(from wire.Peer, st wire.PodStats) {
	p := r.findAtHome(from, st.Service, st.PodID)
	if p == nil || outdated(st, p.stats) {
		return
	}
	p.service.addStats(p, st)
	// The last packets of pods that are being stopped do not count as use.
	if s := p.service.machine.State(); s == lifecycle.Warm || s == lifecycle.Frozen {
		r.engine.planner.used(p.service, false)
	}
	r.engine.freezer.used(p)
	r.engine.step(p.service, lifecycle.FlowsSeen{Ref: p.ref, Open: st.OpenFlows, LastPacket: st.LastPacket})
}

// answers handles a node's report of requests. A request that reached no pod counts for the service once it has
// ended.
func (r *receiver) answers(from wire.Peer, at monotime.Time, a wire.PodAnswers) {
	if a.PodID != 0 {
		if p := r.find(from, a.Service, a.PodID); p != nil {
			started, _, failed := p.answers.add(from.Node, at, a)
			p.service.traffic.Requests += started
			p.service.traffic.FailedRequests += failed
		}
		return
	}
	if s := r.engine.table.byAddr[a.Service]; s != nil {
		_, answered, failed := s.answers.add(from.Node, at, a)
		s.traffic.Requests += answered
		s.traffic.FailedRequests += failed
	}
}

// outdated reports whether a pod's counters are older than others: they may arrive out of order. The time of the same
// packet may be earlier in a later message (docs/protocol/table.md, Clocks), but every packet changes the counters.
func outdated(st, than wire.PodStats) bool {
	return st.LastPacket < than.LastPacket &&
		(st.NewFlows < than.NewFlows || st.BytesIn < than.BytesIn || st.BytesOut < than.BytesOut)
}

// podReport passes a daemon's observation on to the cluster.
func (r *receiver) podReport(from wire.Peer, m *wire.PodReport) {
	cluster := r.engine.cluster
	if cluster == nil {
		return
	}
	pod := runtime.Pod{
		ID: m.UID, Service: v1alpha1.Key(m.Service), SpecHash: m.SpecHash, Addr: m.Addr, Netns: m.Netns, Node: from.Node,
	}
	if info := r.nodes.node(from.Node).info; info != nil {
		pod.NodeAddr = info.Addr // as the cluster has confirmed it
	}
	event := runtime.PodEvent(m.Event)
	if event == runtime.PodContainerStarted {
		pod.Started = m.At
	}
	cluster.ReportPod(runtime.PodReport{
		Event: event, Pod: pod, Name: m.Name, Container: m.Container, At: m.At, Code: m.Code,
	})
}

// unreadable ends a pod whose files cannot be fetched, as after a crash: its service starts another one, which
// prefers other nodes.
func (r *receiver) unreadable(from wire.Peer, m *wire.Unreadable) {
	e := r.engine
	p := e.table.byRuntime[m.UID]
	if e.cluster == nil || p == nil || p.node != from.Node {
		return
	}
	e.runner.giveUp(p, fmt.Sprintf("pod %s on node %s is ended, because %s", cmp.Or(p.rt.Name, m.UID), from.Node, m.Cause))
}
