// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

func (s *service) pod(r lifecycle.Ref) *pod {
	for _, p := range s.pods {
		if p.ref == r {
			return p
		}
	}
	return nil
}

// addPod adds a pod before its network is known.
func (s *service) addPod(ref lifecycle.Ref) *pod {
	p := &pod{service: s, ref: ref, probe: s.readiness(), cancel: func() {}}
	copy(p.ports[:], s.targets(p))
	s.pods = append(s.pods, p)
	return p
}

// targets are the ports on which a pod is expected to listen, for each port that the service has now: those of its own
// spec, as far as that has them.
func (s *service) targets(p *pod) []uint16 {
	targets := make([]uint16, len(s.ports))
	for i, port := range s.ports {
		targets[i] = cmp.Or(p.ports[i], uint16(port.Target))
	}
	return targets
}

// removePod forgets a pod of which nothing remains, and releases the sleepers that wait for its end.
func (s *service) removePod(p *pod) {
	for i, q := range s.pods {
		if q == p {
			s.pods = append(s.pods[:i], s.pods[i+1:]...)
			break
		}
	}
	waiting := s.sleepers[:0]
	for _, w := range s.sleepers {
		if delete(w.refs, p.ref); len(w.refs) == 0 {
			close(w.done)
		} else {
			waiting = append(waiting, w)
		}
	}
	s.sleepers = waiting
}

// replicas is the number of pods whose process runs.
func (s *service) replicas() int {
	n := 0
	for _, p := range s.pods {
		if p.runs() {
			n++
		}
	}
	return n
}

// lifecycle returns the part that the service's state machine needs.
func (s *service) lifecycle(rolls bool) lifecycle.Spec {
	spec := s.wanted.lifecycle(rolls)
	if s.foresight.wanted != "" && spec.Min == 0 {
		spec.Min, spec.MinWhy = 1, wantedWhy[s.foresight.wanted]
	}
	return spec
}

func (s *service) status() status.Status {
	st := status.Status{Service: *s.spec, Traffic: s.traffic, Serving: s.machine.Serving(), Desired: s.machine.Desired(),
		Outlook: s.foresight.outlook(), Pressure: s.pressure(), Images: s.images.Status, Lazy: s.images.Lazy, Pull: s.pull}
	st.Traffic.Denied, st.Lost = s.denied.total(), s.lost()
	st.Traffic.OpenRequests = s.answers.open()
	st.Slept = s.sleep.status(requestsOf(&s.spec.Spec))
	st.NotFrozen, st.HistorySince = s.machine.NotFrozen(), s.historySince.Round(0)
	if s.lastWake != nil {
		w := *s.lastWake
		st.LastWake = &w
	}
	w := &st.Service.Status
	*w = v1alpha1.WangellServiceStatus{
		LoadBalancerIP: s.addr.Addr().String(), State: s.stateOf().String(), Message: s.message(),
		Replicas: int32(s.replicas()), ImageDigests: s.images.Digests.List,
		UseHistory: s.foresight.saved,
	}
	if w.Message == "" {
		w.Message = cmp.Or(s.imageErr, s.images.Status.Problem(), s.unready(), s.pull.Message(), s.layerWarning(),
			s.throttleWarning(), s.hiddenClients)
	}
	w.Conditions, w.LatestRequest = s.recalled.Conditions, s.recalled.LatestRequest
	if s.lastPacket != 0 {
		w.LatestRequest = &metav1.Time{Time: s.lastPacket.Wall()}
	}
	for _, p := range s.pods {
		ps := p.status()
		st.Pods = append(st.Pods, ps)
		st.Traffic.OpenFlows += ps.Traffic.OpenFlows
		st.Traffic.OpenRequests += ps.Traffic.OpenRequests
		st.Traffic.RequestsPerSecond += ps.Traffic.RequestsPerSecond
	}
	return st
}

// message explains the service's state; empty if there is nothing to explain.
func (s *service) message() string {
	if lost := s.lost(); lost != "" {
		return lost
	}
	r, waits := s.machine.WaitsFor()
	if !waits {
		return cmp.Or(s.machine.Message(), s.slowStop(), s.pressure().Message, s.denied.message(),
			s.machine.StartWaits(), s.machine.Misplaced(), s.machine.ClosedPorts())
	}
	name := "the previous pod"
	if p := s.pod(r); p != nil && p.rt.ID != "" {
		name = "pod " + cmp.Or(p.rt.Name, p.rt.ID)
		if p.node != "" {
			name += " on " + p.node
		}
	}
	volume := s.sharedVolume()
	if volume == "" {
		return fmt.Sprintf("waits for %s to end: updateStrategy is Recreate", name)
	}
	return fmt.Sprintf("waits for %s to end: it may still write volume %q", name, volume)
}

// lost returns the message for a pod on a silent node beside which no other may run; empty if there is none.
func (s *service) lost() string {
	r, lost := s.machine.Lost()
	p := s.pod(r)
	if !lost || p == nil {
		return ""
	}
	does := "run"
	if volume := s.sharedVolume(); volume != "" {
		does = fmt.Sprintf("write volume %q", volume)
	}
	return fmt.Sprintf("node %s does not answer, and pod %s may still %s there: no other starts beside it. Once the "+
		"machine is certainly off, delete the Node, or kubectl taint node %s "+
		"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute",
		p.node, cmp.Or(p.rt.Name, p.rt.ID), does, p.node)
}

// slowStop returns the message for a pod that does not end on SIGTERM; empty if there is none.
func (s *service) slowStop() string {
	for _, p := range s.pods {
		if p.slow != "" {
			return p.slow
		}
	}
	return ""
}

// unready returns the message for a pod that listens and whose readinessProbe fails; empty if there is none.
func (s *service) unready() string {
	for _, p := range s.pods {
		if answer, ok := s.machine.Unready(p.ref); ok {
			return fmt.Sprintf("pod %s is not ready: %s", cmp.Or(p.rt.Name, p.rt.ID), answer)
		}
	}
	return ""
}

// layerWarning returns the warning about the layer of the first pod that has one.
func (s *service) layerWarning() string {
	for _, p := range s.pods {
		if p.layer.warning != "" {
			return p.layer.warning
		}
	}
	return ""
}

// throttleWarning returns the warning about the first pod that is throttled.
func (s *service) throttleWarning() string {
	for _, p := range s.pods {
		if p.throttle.warning != "" {
			return p.throttle.warning
		}
	}
	return ""
}

// idleForAge is how long a node's idle report is valid: daemons repeat it every 10 s.
const idleForAge = 30 * time.Second

// noteIdle records a node's idle report. ok is true once every node with a serving pod has a valid report.
func (s *service) noteIdle(node string, report idleNode, now monotime.Time) (ev lifecycle.IdleSeen, ok bool) {
	if s.idle == nil {
		s.idle = map[string]idleNode{}
	}
	s.idle[node] = report
	ev = lifecycle.IdleSeen{Of: map[lifecycle.Ref]monotime.Time{}}
	for _, p := range s.pods {
		if !s.machine.Serves(p.ref) {
			continue
		}
		r, known := s.idle[p.node]
		if !known || now.Sub(r.at) > idleForAge || lifecycle.UsedSince(r.lastPacket, p.stats.LastPacket, s.silence()) {
			return ev, false
		}
		ev.Of[p.ref], ev.LastPacket = r.lastPacket, max(ev.LastPacket, r.lastPacket)
	}
	clear(s.idle)
	return ev, true
}

// addStats adds a pod's counters, which are totals since its start.
func (s *service) addStats(p *pod, st wire.PodStats) {
	old := p.stats
	p.stats = st
	if st.NewFlows < old.NewFlows || st.BytesIn < old.BytesIn || st.BytesOut < old.BytesOut {
		old = wire.PodStats{} // the gate was replaced and counts from zero
	}
	s.traffic.NewFlows += st.NewFlows - old.NewFlows
	s.traffic.BytesIn += st.BytesIn - old.BytesIn
	s.traffic.BytesOut += st.BytesOut - old.BytesOut
	s.lastPacket = max(s.lastPacket, st.LastPacket)
}

// pressure summarizes what is scarce for the service.
func (s *service) pressure() status.Pressure {
	addr := s.addr
	if s.homeless {
		addr = netip.AddrPort{}
	}
	return s.pressures.of(addr, s.machine.State() != lifecycle.Cold)
}

// state is the pod's state in its service's state machine.
func (p *pod) state() lifecycle.PodState { return p.service.machine.PodState(p.ref) }

// runs reports whether the pod's process runs. It may listen before Start has returned.
func (p *pod) runs() bool {
	running := p.returned && p.rt.Started != 0 || p.published == lifecycle.PodServing
	return running && p.state() != lifecycle.PodExited
}

// identify takes the runtime's description of the pod.
func (p *pod) identify(rt runtime.Pod, defaultNode string) {
	p.rt = rt
	for i, port := range rt.Ports {
		p.ports[i] = cmp.Or(port, p.ports[i])
	}
	p.id = wireID(rt.ID)
	p.node = cmp.Or(rt.Node, defaultNode)
}

// reservedIDs is the least ID that daemons use themselves, for the proxies of nodes.
const reservedIDs = 0xffff_fffe << 32

// wireID returns a pod's ID on the wire. It depends on the runtime's ID only, so that the next controller, which adopts
// the pod, gives it the same one.
func wireID(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	sum := h.Sum64()
	if sum >= reservedIDs {
		sum &^= 1 << 63
	}
	return max(sum, 1)
}

func (p *pod) status() status.Pod {
	state := p.state().String()
	frozen := p.still.status()
	if frozen != nil && p.state() == lifecycle.PodServing {
		state = "frozen"
	}
	return status.Pod{
		ID: p.rt.ID, Addr: p.rt.Addr, Node: p.node, State: state, Started: p.rt.Started.Wall(), Frozen: frozen,
		Traffic: status.Traffic{
			OpenFlows: p.stats.OpenFlows, NewFlows: p.stats.NewFlows, BytesIn: p.stats.BytesIn, BytesOut: p.stats.BytesOut,
			Requests: p.answers.sum.Started, OpenRequests: p.answers.open(),
			RequestsPerSecond: p.answers.rate(monotime.Now()),
		},
	}
}
