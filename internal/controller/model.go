// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/controller/images"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/scale"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// pod is a pod of a service, from StartPod to StopDone.
type pod struct {
	service *service
	ref     lifecycle.Ref             // in the service's state machine
	ports   [v1alpha1.MaxPorts]uint16 // on which it is expected to listen, for each port of the service
	probe   string                    // the readinessProbe of its spec for its home node; empty if there is none
	rt      runtime.Pod               // zero before its network is ready
	id      uint64                    // its ID on the wire; 0 before its network is ready
	node    string                    // its home node, once its network is ready
	cancel  context.CancelFunc        // of its start

	returned bool          // Start has returned
	stopping bool          // the runtime was asked to stop it, or will be when Start returns
	served   bool          // it was published as serving at some time
	early    *runtime.Exit // its exit, if that came before Start returned
	grace    time.Duration // with which it is stopped
	slow     string        // a message if it does not end on SIGTERM; else empty

	published lifecycle.PodState // as daemons know it; 0 if they do not
	// quietFrom is the first generation whose Quiet counts, because every daemon has the drain by then; 0 before that.
	quietFrom uint64

	stats wire.PodStats
	usage consumption
	still stillness
	layer layer // on one machine
	// throttle is how much CPU limits have slowed it; on one machine.
	throttle throttle
	answers  answers // requests through all nodes
	load     *uint32 // its open flows as last reported for other nodes; nil if they were not
}

// service is the controller's state of a service. It belongs to the loop.
type service struct {
	*wanted
	machine *lifecycle.Machine
	pods    []*pod
	again   *wanted // it was deleted, and is wanted again once its pods are gone
	// homeless is set once its address belongs to another service: it was deleted, and its pods are not gone yet.
	homeless bool
	// routed is when another service last routed requests to it, if a change of its traffic has ended that; else zero.
	routed   monotime.Time
	sleepers []*sleeper
	waiters  []*waiter
	due      monotime.Time // of its machine's timer
	heapPos  int           // in deadlines; -1 if it is not there

	// pressed is set if it was stopped last because a node was short of room; roomLook while a check of the nodes'
	// room for its pods is pending.
	pressed, roomLook bool

	historySince  time.Time                     // Status.HistorySince
	sleep         sleep                         // how long it has slept
	foresight     foresight                     // when it has a pod without demand
	spent         spent                         // the time it has spent in each state
	traffic       status.Traffic                // of all its pods, including those that are gone
	answers       answers                       // requests that have no pod
	lastPacket    monotime.Time                 // of all its pods
	crashed       crashed                       // the last pod whose process was reported to have ended
	imageErr      string                        // why its image could not be fetched ahead of need, on one machine
	hiddenClients string                        // why its pods do not see the addresses of their clients, if they should
	pull          *status.Pull                  // the pull in progress, on one machine; nil if none
	images        images.Service                // its images, and on a cluster where they are
	lastWake      *lifecycle.Waterfall          // nil if there was none
	recalled      v1alpha1.WangellServiceStatus // as Recall was told last: conditions, and the time of its last packet
	counted       uint64                        // number of the last wake that is in the metrics
	reported      glance                        // as last reported by Changed
	idle          map[string]idleNode           // by node
	denied        denials
	pressures     *pressures // of all services

	scaler   scale.Scaler  // while it follows its load
	newFlows rate          // likewise
	measured monotime.Time // when the runtime was asked for the use of its pods

	publication *publication    // the newest one; nil if there is none
	round       *drainRound     // of a drain that not every daemon has handled yet
	askers      map[uint64]bool // sessions that asked for a pod since the last one began to serve
}

// crashed is a pod whose process has ended. It may be gone when the reason becomes known.
type crashed struct {
	id  string // the runtime's
	ref lifecycle.Ref
}

// publication is the pods of a service as daemons get them.
type publication struct {
	seq     uint64
	service *service
	message *wire.Backends
	homes   map[string]bool // nodes of its pods
	plain   *wire.Encoded   // for nodes without a pod of it; nil until it is needed
}

// empty reports whether a newly joined daemon can skip it.
func (p *publication) empty() bool { return len(p.message.Pods) == 0 && len(p.service.pods) == 0 }

// drainRound is a drain on its way to all daemons. Any of them may give the pod a new flow until it has the message, so
// reports of the pod's home node on open flows and packets count only once all have it.
type drainRound struct {
	service *service
	seq     uint64 // of its publication
	awaited int    // daemons that have not handled it
}

// deliver passes an event to a service's state machine, and carries out its decisions.
type deliver func(*service, lifecycle.Event)

// idleNode is a node's report that it sees no packet for its pods of a service.
type idleNode struct {
	at         monotime.Time // when it came
	lastPacket monotime.Time // or when the last of the node's pods began to serve
}

// sleeper waits until pods are gone.
type sleeper struct {
	refs map[lifecycle.Ref]bool
	done chan struct{}
}

// waiter waits until a user's request is fulfilled.
type waiter struct {
	ready func(*service) (bool, error) // an error if that has become impossible
	done  chan error                   // gets one value
}

// glance is the part of a service's Status that decides whether it has changed.
type glance struct {
	state                      lifecycle.State
	message, image, history    string
	images                     status.Images
	lazy                       status.LazyPulls
	digests                    int // images.Digests.Changes
	serving, desired, replicas int
	pressure                   status.Pressure
	wake                       uint64
	result                     lifecycle.Result
	phases                     int
	lastPacket                 monotime.Time
}

// scaleEvery is how often services that follow their load are observed. Daemons report counts of flows as often.
const scaleEvery = time.Second

// rate measures how fast a count grows.
type rate struct {
	since monotime.Time
	count uint64
	value float64
}

// at returns the rate per second at a time, measured over at least scaleEvery; NaN the first time.
func (r *rate) at(count uint64, now monotime.Time) float64 {
	switch d := now.Sub(r.since); {
	case r.since == 0:
		*r = rate{now, count, math.NaN()}
	case d >= scaleEvery*9/10: // a timer may fire slightly early
		*r = rate{now, count, float64(count-r.count) / d.Seconds()}
	}
	return r.value
}

// table finds services and pods by their names. It belongs to the loop.
type table struct {
	services  map[v1alpha1.Key]*service
	byAddr    map[netip.AddrPort]*service
	byRuntime map[string]*pod // by the runtime's ID
	byWire    map[uint64]*pod // by the ID on the wire
	node      string          // home node of the pods for which the runtime does not name one
}

func newTable(node string) *table {
	return &table{
		services: map[v1alpha1.Key]*service{}, byAddr: map[netip.AddrPort]*service{},
		byRuntime: map[string]*pod{}, byWire: map[uint64]*pod{}, node: node,
	}
}

// identify makes a pod known by the names that the runtime and daemons use for it.
func (t *table) identify(p *pod, rt runtime.Pod) {
	p.identify(rt, t.node)
	t.byRuntime[rt.ID] = p
	t.byWire[p.id] = p
}

// removePod forgets a pod of which nothing remains.
func (t *table) removePod(p *pod) {
	if t.byRuntime[p.rt.ID] == p {
		delete(t.byRuntime, p.rt.ID)
	}
	if t.byWire[p.id] == p {
		delete(t.byWire, p.id)
	}
	p.service.removePod(p)
}

// revisions returns the services that others route requests to.
func (t *table) revisions() map[v1alpha1.Key]bool {
	all := map[v1alpha1.Key]bool{}
	for _, s := range t.services {
		if s.machine.Deleted() {
			continue
		}
		for _, r := range s.spec.Spec.Traffic {
			all[v1alpha1.Key(s.spec.Namespace+"/"+r.Revision)] = true
		}
	}
	return all
}

// unroute records for the revisions that a change of a service's traffic leaves out that they have got requests so far.
func (t *table) unroute(before, after *wanted) {
	for _, r := range before.spec.Spec.Traffic {
		if slices.ContainsFunc(after.spec.Spec.Traffic, func(n v1alpha1.Revision) bool { return n.Revision == r.Revision }) {
			continue
		}
		if s := t.services[v1alpha1.Key(before.spec.Namespace+"/"+r.Revision)]; s != nil {
			s.routed = monotime.Now()
		}
	}
}

// podsOn returns the pods of a node.
func (t *table) podsOn(node string) []*pod {
	var pods []*pod
	for _, s := range t.services {
		for _, p := range s.pods {
			if p.node == node {
				pods = append(pods, p)
			}
		}
	}
	return pods
}

// serving returns the main containers of the serving pods that selected selects, by the runtime's IDs of the pods.
func (t *table) serving(selected func(*pod) bool) map[string]string {
	names := map[string]string{}
	for id, p := range t.byRuntime {
		if p.published == lifecycle.PodServing && selected(p) {
			names[id] = p.service.spec.Name
		}
	}
	return names
}
