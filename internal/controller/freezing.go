// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// freezer freezes and thaws pods through their daemons, and checks whether idle ones are at work. It belongs to the
// loop.
type freezer struct {
	loop    *loop
	workers *workers
	table   *table
	daemons *daemons
	meter   runtime.Meter   // nil if the runtime is not one: then daemons check whether pods are at work
	cluster runtime.Cluster // nil on one machine; in one, daemons find the cgroups of pods
	relief  *relief
	deliver deliver
}

// send sends each daemon the pods of a service on its node that should be frozen.
func (f *freezer) send(s *service, a lifecycle.FreezePods) {
	if s.homeless {
		return
	}
	for id, peer := range f.daemons.peers {
		m := &wire.Freeze{
			Service: s.addr, Seq: a.Seq, Reclaim: s.spec.Spec.Reclaims(),
			UnlessBusy: f.meter == nil && !s.spec.Spec.FreezesBusy(),
		}
		here := false
		for _, p := range s.pods {
			here = here || p.node == peer.Node
		}
		for _, b := range a.Pods {
			if p := s.pod(b.Ref); p != nil && p.node == peer.Node && (p.rt.Cgroup != "" || f.cluster != nil) {
				m.Pods = append(m.Pods, wire.FrozenPod{PodID: p.id, LastPacket: b.LastPacket, Cgroup: p.rt.Cgroup})
			}
		}
		if here {
			f.daemons.send(id, m)
		}
	}
}

// report handles a daemon's report on a pod.
func (f *freezer) report(p *pod, m *wire.Frozen) {
	p.still.report = nil
	if m.Frozen {
		p.still.report = m
	}
	if f.cluster != nil {
		f.cluster.SetFrozen(p.rt.ID, m.Frozen)
		if !m.Frozen {
			f.relief.lookForRoom(p.service)
		}
	}
	last := max(p.stats.LastPacket, p.service.lastPacket)
	f.deliver(p.service, lifecycle.FrozenSeen{
		Ref: p.ref, Seq: m.Seq, Frozen: m.Frozen, At: m.At, LastPacket: last, Reason: m.Reason,
	})
}

// used schedules a measurement of a pod that may be frozen later, after its last packet.
func (f *freezer) used(p *pod) {
	if !f.looksAtUse(p.service) || p.still.measure || p.still.since.At > p.stats.LastPacket {
		return
	}
	f.measure([]*pod{p}, func(use map[*pod]runtime.Usage) {
		if u, ok := use[p]; ok {
			p.still.since = u
		}
	})
}

// looksAtUse reports whether pods of a service that are at work must not be frozen.
func (f *freezer) looksAtUse(s *service) bool {
	return f.meter != nil && s.freezeAfter() > 0 && !s.spec.Spec.Sleep.FreezeWhenBusy
}

// idle delivers the report that a service is idle, with the CPU usage of its pods if they may be frozen. A service
// with unanswered requests is not idle.
func (f *freezer) idle(s *service, ev lifecycle.IdleSeen) {
	if s.freezeAfter() == 0 || s.machine.State() != lifecycle.Warm {
		f.deliver(s, ev)
		return
	}
	if monotime.Now().Sub(ev.LastPacket) < s.freezeAfter() || s.status().Traffic.OpenRequests > 0 {
		return // the daemon repeats it
	}
	if !f.looksAtUse(s) {
		f.deliver(s, ev)
		return
	}
	f.look(s, ev, true)
}

// lookSpan is the shortest time over which CPU usage is measured for a pod without a measurement since its last
// packet.
const lookSpan = time.Second

// look delivers the report that a service is idle with the usage of its pods. If that is not known yet, it measures
// once more a little later.
func (f *freezer) look(s *service, ev lifecycle.IdleSeen, again bool) {
	f.measure(s.pods, func(use map[*pod]runtime.Usage) {
		ev.Cores = f.cores(s, use)
		switch {
		case s.machine.State() != lifecycle.Warm || f.table.services[s.key] != s:
		case ev.Cores != nil:
			f.deliver(s, ev)
		case again:
			f.loop.after(lookSpan, func() { f.look(s, ev, false) })
		}
	})
}

// cores returns the CPU usage of the serving pods since their last packets, in cores; nil while it is unknown for one
// of them.
func (f *freezer) cores(s *service, use map[*pod]runtime.Usage) map[lifecycle.Ref]float64 {
	cores := map[lifecycle.Ref]float64{}
	for _, p := range s.pods {
		if !s.machine.Serves(p.ref) {
			continue
		}
		u, ok := use[p]
		from := p.still.since
		if ok && (from.At < p.stats.LastPacket || from.At == 0) {
			p.still.since = u // from now on
		}
		span := u.At.Sub(from.At)
		if !ok || from.At < p.stats.LastPacket || from.At == 0 || span <= 0 {
			return nil
		}
		cores[p.ref] = math.Max(0, float64(u.CPU-from.CPU)/float64(span))
		if cores[p.ref] > lifecycle.BusyCores {
			p.still.since = u // the next look measures from now on
		}
	}
	return cores
}

// measure measures the usage of pods, and calls then on the loop with those that could be measured.
func (f *freezer) measure(pods []*pod, then func(map[*pod]runtime.Usage)) {
	if f.loop.idle() {
		return
	}
	ids := map[*pod]string{}
	for _, p := range pods {
		if p.rt.ID != "" {
			ids[p], p.still.measure = p.rt.ID, true
		}
	}
	f.workers.group.Go(func() {
		use := map[*pod]runtime.Usage{}
		for p, id := range ids {
			if u, err := f.meter.Usage(f.workers.ctx, id); err == nil {
				use[p] = u
			}
		}
		f.loop.post(func() {
			for p := range ids {
				p.still.measure = false
			}
			then(use)
		})
	})
}

// frozenBytes returns the bytes of a service's frozen pods in RAM and in swap, and whether any pod is frozen.
func (s *service) frozenBytes() (resident, swapped uint64, any bool) {
	for _, p := range s.pods {
		if r := p.still.report; r != nil {
			resident, swapped, any = resident+r.Resident, swapped+r.Swapped, true
		}
	}
	return resident, swapped, any
}

// stillness is the state of a pod's freezing.
type stillness struct {
	report *wire.Frozen // the last one, if the pod is frozen; else nil
	// since is a measurement after the pod's last packet; zero if there is none.
	since   runtime.Usage
	measure bool // the pod is being measured
}

func (s stillness) status() *status.Frozen {
	if s.report == nil {
		return nil
	}
	return &status.Frozen{
		Since: s.report.At.Wall(), ResidentBytes: s.report.Resident, SwappedBytes: s.report.Swapped,
		Reason: s.report.Reason,
	}
}
