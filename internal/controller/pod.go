// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"hash/fnv"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

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
	p.port = cmp.Or(rt.Port, p.port)
	p.id = wireID(rt.ID)
	p.node = cmp.Or(rt.Node, defaultNode)
}

// wireID returns a pod's ID on the wire. It depends on the runtime's ID only, so that the next controller, which adopts
// the pod, gives it the same one.
func wireID(id string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id))
	return max(h.Sum64(), 1)
}

func (p *pod) status() PodStatus {
	state := p.state().String()
	frozen := p.still.status()
	if frozen != nil && p.state() == lifecycle.PodServing {
		state = "frozen"
	}
	return PodStatus{
		ID: p.rt.ID, Addr: p.rt.Addr, Node: p.node, State: state, Started: p.rt.Started.Wall(), Frozen: frozen,
		Traffic: Traffic{
			OpenFlows: p.stats.OpenFlows, NewFlows: p.stats.NewFlows, BytesIn: p.stats.BytesIn, BytesOut: p.stats.BytesOut,
			Requests: p.answers.sum.Started, OpenRequests: p.answers.open(),
			RequestsPerSecond: p.answers.rate(monotime.Now()),
		},
	}
}
