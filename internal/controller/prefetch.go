// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/placement"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

const (
	// imageSettle is how long a new controller waits for daemons before it divides the images among them: the first one
	// to connect must not get all.
	imageSettle = 3 * time.Second
	// imagePause gathers changes before nodes get them. It grows with the time that deciding takes.
	imagePause = 50 * time.Millisecond
	imageShare = 8
	// nodeStays is how long a node without a daemon keeps its images: daemons are restarted one by one in an update.
	nodeStays = 5 * time.Minute
	// describeEvery is how often labels and taints of a node are read again.
	describeEvery = 10 * time.Minute
	// lazyDescribeEvery is the same if a label decides which nodes are set up for lazy pulls.
	lazyDescribeEvery = time.Minute
)

// prefetcher has the nodes of a cluster pull the images of services ahead of need, and follows their progress. It
// belongs to the loop. It is nil on one machine, where the preparer does this.
type prefetcher struct {
	loop    *loop
	workers *workers
	table   *table
	daemons *daemons
	events  *hub
	changed *changedSet
	cluster runtime.Cluster
	settle  time.Duration
	// pullRetry is the first pause after a pull by kubelet.
	pullRetry time.Duration
	lazy      bool // Config.Lazy

	synced bool // the services are known
	asked  bool // the time to settle has begun
	open   bool // it is over
	armed  bool
	next   time.Time // not before
	nodes  map[string]*imageNode
	plan   placement.Plan
	users  map[string][]*service // services by image
}

// imageNode is a node that has, or had, a daemon.
type imageNode struct {
	placement.Node
	described  bool
	session    uint64 // of its daemon; 0 while there is none
	lost       monotime.Time
	reports    map[string]imageState // by image
	sent       []wire.WantedImage
	shared     []string // repositories of sent that the node shares with others, sorted
	sentIn     uint64   // session
	generation uint64   // of sent, in that session
	pulls      map[string]*kubeletPull

	mirror           uint64   // the session in which it has said that it shares images; 0: it does not
	needed           []string // repositories of the services whose pods may run there, as last sent, sorted
	neededIn         uint64   // session
	neededGeneration uint64   // of needed, in that session
}

// forget forgets a service that is gone.
func (p *prefetcher) forget(s *service) {
	if p != nil {
		p.cluster.PreferNodes(s.key, nil)
		p.touch()
	}
}

// begin declares the services known.
func (p *prefetcher) begin() {
	if p != nil {
		p.synced = true
		p.touch()
	}
}

// joined notes the daemon of a node.
func (p *prefetcher) joined(peer wire.Peer) {
	if p == nil {
		return
	}
	n := p.nodes[peer.Node]
	if n == nil {
		n = &imageNode{Node: placement.Node{Name: peer.Node}, reports: map[string]imageState{}}
		p.nodes[peer.Node] = n
		p.describe(n)
	}
	n.session = peer.ID
	p.touch()
}

// left notes that the daemon of a node is gone.
func (p *prefetcher) left(peer wire.Peer) {
	if p == nil {
		return
	}
	n := p.nodes[peer.Node]
	if n == nil || n.session != peer.ID {
		return
	}
	n.session, n.lost = 0, monotime.Now()
	lost := n.lost
	p.loop.after(nodeStays, func() {
		if n.session == 0 && n.lost == lost && p.nodes[n.Name] == n {
			delete(p.nodes, n.Name)
			n.endPulls()
			p.touch()
		}
	})
}

// describe reads the labels and taints of a node periodically while it has a daemon. A node that cannot be read
// counts as one where every pod could run.
func (p *prefetcher) describe(n *imageNode) {
	if p.nodes[n.Name] != n || p.loop.idle() {
		return
	}
	p.workers.group.Go(func() {
		labels, taints, err := p.cluster.DescribeNode(p.workers.ctx, n.Name)
		p.loop.post(func() {
			was := n.Node
			if err == nil {
				n.Known, n.Labels, n.Taints = true, labels, taints
			}
			same := n.described && was.Known == n.Known && maps.Equal(was.Labels, n.Labels) &&
				slices.EqualFunc(was.Taints, n.Taints, func(a, b corev1.Taint) bool {
					return a.MatchTaint(&b) && a.Value == b.Value
				})
			n.described = true
			if !same {
				p.touch()
			}
			every := describeEvery
			if p.lazy {
				every = lazyDescribeEvery
			}
			p.loop.after(every, func() { p.describe(n) })
		})
	})
}

// touch decides anew soon, because services or nodes have changed.
func (p *prefetcher) touch() {
	switch {
	case p == nil || p.armed || !p.synced || len(p.nodes) == 0:
	case !p.asked:
		p.asked = true
		p.loop.after(p.settle, func() { p.open = true; p.touch() })
	case p.open:
		p.armed = true
		p.loop.after(max(imagePause, time.Until(p.next)), p.decide)
	}
}

// decide divides the images among the nodes, and sends the sets that have changed.
func (p *prefetcher) decide() {
	p.armed = false
	if p.loop.idle() {
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
	p.users = map[string][]*service{}
	for _, s := range p.table.services {
		s.lazy = decideLazy(&s.spec.Spec, nodes, p.lazy)
		if _, planned := unplanned(&s.spec.Spec); planned && !s.machine.Deleted() {
			services = append(services, s.placed())
			for _, image := range s.imageList() {
				p.users[image.Name] = append(p.users[image.Name], s)
			}
		}
	}
	p.plan = placement.Place(services, nodes, wire.MaxImages)
	for _, n := range p.nodes {
		if n.described && n.session != 0 {
			p.tell(n)
			p.pullHere(n)
		}
	}
	p.tellNeeded()
	for _, s := range p.table.services {
		p.judge(s)
	}
	now := time.Now()
	p.next = now.Add(imageShare * now.Sub(begin))
}

// policies are the pull policies on the wire.
var policies = map[corev1.PullPolicy]wire.ImagePolicy{
	corev1.PullIfNotPresent: wire.ImageIfNotPresent, corev1.PullAlways: wire.ImageAlways,
	corev1.PullNever: wire.ImageNever,
}

// tell sends a node's daemon its set of images, unless the daemon got it in this session.
func (p *prefetcher) tell(n *imageNode) {
	list := p.divideWants(n)
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
		p.daemons.send(n.session, m)
	}
}

// received handles a daemon's report about its images.
func (p *prefetcher) received(from wire.Peer, m *wire.ImageReports) {
	if p == nil || p.nodes[from.Node] == nil {
		return
	}
	n := p.nodes[from.Node]
	for _, r := range m.Images {
		if _, known := n.reports[r.Ref]; !known && len(n.reports) >= 2*wire.MaxImages {
			continue
		}
		n.reports[r.Ref] = imageState{ImageReport: r}
		p.heard(n, r)
		p.judgeUsers(r.Ref)
	}
}

// pulled records how much of an image a node has pulled.
func (p *prefetcher) pulled(from wire.Peer, m *wire.ImagePulled) {
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

// learn resolves the names of a service's images, and reports whether there is a new digest.
func (p *prefetcher) learn(s *service) bool {
	if !s.resolved.learn(&s.spec.Spec, p.plan.Nodes[string(s.key)], p.report) {
		return false
	}
	for _, d := range s.resolved.list {
		p.rename(d.Image, s.resolved.names[d.Image], d.Digest)
	}
	p.touch()
	return true
}

// rename notes that nodes with an image also have it by the name with its digest, before they report so.
func (p *prefetcher) rename(ref, name, digest string) {
	for _, n := range p.nodes {
		r, known := n.reports[ref]
		if _, has := n.reports[name]; known && !has && r.State == wire.ImagePresent && r.Digest == digest {
			r.Ref = name
			n.reports[name] = r
		}
	}
}

// report returns a node's last report of an image; the zero value if there is none.
func (p *prefetcher) report(node, name string) imageState {
	if n := p.nodes[node]; n != nil {
		return n.reports[name]
	}
	return imageState{}
}
