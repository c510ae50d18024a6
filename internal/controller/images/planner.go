// SPDX-License-Identifier: Apache-2.0

// Package images has the nodes of a cluster pull the images of services ahead of need: it decides which node should
// have which image, tells the daemons, has kubelet pull what takes credentials, resolves tags to digests, and tells
// nodes from which others they may fetch blobs. Everything in it belongs to the controller's loop, which it knows as a
// Host.
package images

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

const (
	// DefaultSettle is how long a new controller waits for daemons before it divides the images among them: the first
	// one to connect must not get all.
	DefaultSettle = 3 * time.Second
	// pause gathers changes before nodes get them. It grows with the time that deciding takes: at most one part in
	// share of the time is spent on it.
	pause = 50 * time.Millisecond
	share = 8
	// nodeStays is how long a node without a daemon keeps its images: daemons are restarted one by one in an update.
	nodeStays = 5 * time.Minute
	// describeEvery is how often labels and taints of a node are read again.
	describeEvery = 10 * time.Minute
	// lazyDescribeEvery is the same if a label decides which nodes are set up for lazy pulls.
	lazyDescribeEvery = time.Minute
)

// Host is the controller, as a Planner uses it. Its methods are called on the controller's loop.
type Host interface {
	// Idle reports whether the controller has stopped deciding, because it ends or another one leads.
	Idle() bool
	// Post and After run f on the loop, After not before d has passed.
	Post(f func())
	After(d time.Duration, f func())
	// Go runs f on a goroutine of its own, for which the controller waits at its end. Context ends with the controller.
	Go(f func())
	Context() context.Context
	// Send queues a message for the daemon of a session.
	Send(session uint64, m wire.Message)
	// Services are those that are not deleted.
	Services() iter.Seq[*Service]
	// Has reports whether a service is one of them.
	Has(*Service) bool
	// Changed is called when the Status, Lazy or Digests of a service may have changed.
	Changed(*Service)
	// Failed is called once for each reason why no node gets the images of a service, which is in its Status.
	Failed(key v1alpha1.Key, st status.Images)
	// NotKept is called once for each text about volumes of images that are lost with each pod, as in Status.
	NotKept(key v1alpha1.Key, text string)
}

// Config is how a Planner works.
type Config struct {
	Cluster runtime.Cluster
	// Settle is how long daemons may take to connect before images are divided among their nodes.
	Settle time.Duration
	// Retry is the first pause after kubelet could not pull an image.
	Retry time.Duration
	// Lazy is set if images may be pulled lazily.
	Lazy bool
}

// Planner divides the images of services among the nodes of a cluster, and follows their progress. Its methods do
// nothing if it is nil, as on one machine.
type Planner struct {
	*state
	Config
	host    Host
	kubelet *kubelet
	judge   *judge
	sharing *sharing

	synced bool // the services are known
	asked  bool // the time to settle has begun
	open   bool // it is over
	armed  bool
	next   time.Time // not before
}

// NewPlanner returns a planner, which begins once Begin is called and daemons have joined.
func NewPlanner(host Host, cfg Config) *Planner {
	p := &Planner{state: &state{nodes: map[string]*node{}, disputes: map[string]*dispute{}}, Config: cfg, host: host}
	p.judge = &judge{state: p.state, host: host, cluster: cfg.Cluster, lazy: cfg.Lazy, news: p.judgeUsers}
	p.kubelet = &kubelet{
		state: p.state, host: host, cluster: cfg.Cluster, retry: cfg.Retry, tell: p.tell, news: p.judgeUsers,
	}
	p.sharing = &sharing{state: p.state, host: host}
	return p
}

// Begin declares the services known.
func (p *Planner) Begin() {
	if p != nil {
		p.synced = true
		p.Touch()
	}
}

// Forget forgets a service that is gone.
func (p *Planner) Forget(key v1alpha1.Key) {
	if p != nil {
		p.Cluster.PreferNodes(key, nil)
		p.Touch()
	}
}

// Joined notes the daemon of a node.
func (p *Planner) Joined(peer wire.Peer) {
	if p == nil {
		return
	}
	n := p.nodes[peer.Node]
	if n == nil {
		n = &node{Node: placement.Node{Name: peer.Node}, reports: map[string]imageState{}}
		p.nodes[peer.Node] = n
		p.describe(n)
	}
	n.session = peer.ID
	p.Touch()
}

// mirrors notes that a node shares images in a session.
func (p *Planner) mirrors(from wire.Peer) {
	if p.nodes[from.Node] == nil {
		return
	}
	p.nodes[from.Node].mirror = from.ID
	p.Touch()
}

// Left notes that the daemon of a node is gone.
func (p *Planner) Left(peer wire.Peer) {
	if p == nil {
		return
	}
	n := p.nodes[peer.Node]
	if n == nil || n.session != peer.ID {
		return
	}
	n.session, n.lost = 0, monotime.Now()
	lost := n.lost
	p.host.After(nodeStays, func() {
		if n.session == 0 && n.lost == lost && p.nodes[n.Name] == n {
			delete(p.nodes, n.Name)
			n.endPulls()
			p.Touch()
		}
	})
}

// describe reads the labels and taints of a node periodically while it has a daemon. A node that cannot be read
// counts as one where every pod could run. One that the cluster does not have gets no images.
func (p *Planner) describe(n *node) {
	if p.nodes[n.Name] != n || p.host.Idle() {
		return
	}
	p.host.Go(func() {
		labels, taints, err := p.Cluster.DescribeNode(p.host.Context(), n.Name)
		p.host.Post(func() {
			was := n.Node
			if err == nil {
				n.Known, n.Labels, n.Taints = true, labels, taints
			}
			is := !errors.Is(err, runtime.ErrNotFound)
			same := n.described == is && was.Known == n.Known && maps.Equal(was.Labels, n.Labels) &&
				slices.EqualFunc(was.Taints, n.Taints, func(a, b corev1.Taint) bool {
					return a.MatchTaint(&b) && a.Value == b.Value
				})
			n.described = is
			if !same {
				p.Touch()
			}
			every := describeEvery
			if p.Lazy {
				every = lazyDescribeEvery
			}
			p.host.After(every, func() { p.describe(n) })
		})
	})
}

// Touch decides anew soon, because services or nodes have changed.
func (p *Planner) Touch() {
	switch {
	case p == nil || p.armed || !p.synced || len(p.nodes) == 0:
	case !p.asked:
		p.asked = true
		p.host.After(p.Settle, func() { p.open = true; p.Touch() })
	case p.open:
		p.armed = true
		p.host.After(max(pause, time.Until(p.next)), p.decide)
	}
}

// decide divides the images among the nodes, and sends the sets that have changed.
func (p *Planner) decide() {
	p.armed = false
	if p.host.Idle() {
		return
	}
	begin := time.Now()
	var nodes []placement.Node
	for _, n := range p.nodes {
		if n.described {
			nodes = append(nodes, n.Node)
		}
	}
	var services []placement.Service
	p.users = map[string][]*Service{}
	for s := range p.host.Services() {
		s.Lazy = decideLazy(&s.spec.Spec, nodes, p.Lazy)
		if _, planned := unplanned(&s.spec.Spec); planned {
			services = append(services, s.placed())
			for _, image := range s.list() {
				p.users[image.Name] = append(p.users[image.Name], s)
			}
		}
	}
	p.plan = placement.Place(services, nodes, wire.MaxImages)
	maps.DeleteFunc(p.disputes, func(image string, _ *dispute) bool { return p.users[image] == nil })
	for _, n := range p.nodes {
		if n.described && n.session != 0 {
			p.tell(n)
			p.kubelet.pullHere(n)
		}
	}
	p.sharing.tellNeeded()
	for s := range p.host.Services() {
		p.judgeService(s)
	}
	now := time.Now()
	p.next = now.Add(share * now.Sub(begin))
}

// judgeUsers judges the images of the services that use one.
func (p *Planner) judgeUsers(image string) {
	for _, s := range p.users[image] {
		p.judgeService(s)
	}
}

// judgeService judges the images of a service. If names of images were resolved anew, the plan is made anew.
func (p *Planner) judgeService(s *Service) {
	if p.judge.service(s) {
		p.Touch()
	}
}

// tell sends a node's daemon its set of images, unless the daemon got it in this session.
func (p *Planner) tell(n *node) {
	list := p.kubelet.divideWants(n)
	known := make(map[string]bool, len(list))
	for _, w := range list {
		known[w.Ref] = true
	}
	maps.DeleteFunc(n.reports, func(ref string, _ imageState) bool { return !known[ref] })
	if n.sentIn == n.session && slices.Equal(list, n.sent) {
		return
	}
	if n.sentIn != n.session {
		n.sentIn, n.generation = n.session, 0
	}
	n.sent, n.shared, n.generation = list, sharedOf(list), n.generation+1
	for _, m := range wire.NewImages(n.generation, list) {
		p.host.Send(n.session, m)
	}
}

// Reported handles a daemon's report about its images.
func (p *Planner) Reported(from wire.Peer, m *wire.ImageReports) {
	if p == nil || p.nodes[from.Node] == nil {
		return
	}
	n := p.nodes[from.Node]
	for _, r := range m.Images {
		if _, known := n.reports[r.Ref]; !known && len(n.reports) >= 2*wire.MaxImages {
			continue
		}
		n.reports[r.Ref] = imageState{ImageReport: r}
		p.kubelet.heard(n, r)
		p.judgeUsers(r.Ref)
	}
}

// Pulled records how much of an image a node has pulled.
func (p *Planner) Pulled(from wire.Peer, m *wire.ImagePulled) {
	if p == nil || p.nodes[from.Node] == nil {
		return
	}
	n := p.nodes[from.Node]
	if r := n.reports[m.Ref]; r.State == wire.ImagePulling {
		r.done, r.total = m.Done, m.Total
		n.reports[m.Ref] = r
		p.judgeUsers(m.Ref)
	}
}
