// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"hash/fnv"
	"net/netip"
	"time"

	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// Traffic counts what went through the gate. Bytes are IP lengths; In is from client to pod.
type Traffic struct {
	OpenFlows uint32 `json:"openFlows"`
	NewFlows  uint64 `json:"newFlows"`
	BytesIn   uint64 `json:"bytesIn"`
	BytesOut  uint64 `json:"bytesOut"`
}

// PodStatus is the status of a pod.
type PodStatus struct {
	// ID is the runtime's ID; empty while the pod has no network.
	ID   string     `json:"id,omitempty"`
	Addr netip.Addr `json:"address,omitzero"`
	// Node is the home node; empty while the pod has no network.
	Node string `json:"node,omitempty"`
	// State is the name of a lifecycle.PodState.
	State   string    `json:"state"`
	Started time.Time `json:"started,omitzero"`
	Traffic Traffic   `json:"traffic"`
}

// pod is a pod of a service, from StartPod to StopDone.
type pod struct {
	service *service
	ref     lifecycle.Ref      // in the service's state machine
	port    uint16             // on which it is expected to listen
	rt      runtime.Pod        // zero before its network is ready
	id      uint64             // its ID on the wire; 0 before its network is ready
	node    string             // its home node, once its network is ready
	cancel  context.CancelFunc // of its start

	returned bool          // Start has returned
	stopping bool          // the runtime was asked to stop it, or will be when Start returns
	served   bool          // it was published as serving at some time
	early    *runtime.Exit // its exit, if that came before Start returned
	grace    time.Duration // with which it is stopped

	published lifecycle.PodState // as daemons know it; 0 if they do not
	// quietFrom is the first generation whose Quiet counts, because every daemon has the drain by then; 0 before that.
	quietFrom uint64

	stats wire.PodStats
	usage consumption
	load  *uint32 // its open flows as last reported for other nodes; nil if they were not
}

// state is the pod's state in its service's state machine.
func (p *pod) state() lifecycle.PodState { return p.service.machine.PodState(p.ref) }

// runs reports whether the pod's process runs. It may listen before Start has returned.
func (p *pod) runs() bool {
	running := p.returned && p.rt.Started != 0 || p.published == lifecycle.PodServing
	return running && p.state() != lifecycle.PodExited
}

// identify notes what the runtime tells about the pod.
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
	return PodStatus{
		ID: p.rt.ID, Addr: p.rt.Addr, Node: p.node, State: p.state().String(), Started: p.rt.Started.Wall(),
		Traffic: Traffic{
			OpenFlows: p.stats.OpenFlows, NewFlows: p.stats.NewFlows, BytesIn: p.stats.BytesIn, BytesOut: p.stats.BytesOut,
		},
	}
}
