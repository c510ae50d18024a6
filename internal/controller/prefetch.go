// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/placement"
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
	*imagePlan
	kubelet *kubeletPuller
	judge   *imageJudge
	sharing *sharing

	loop    *loop
	workers *workers
	table   *table
	daemons *daemons
	cluster runtime.Cluster
	settle  time.Duration
	lazy    bool // Config.Lazy

	synced bool // the services are known
	asked  bool // the time to settle has begun
	open   bool // it is over
	armed  bool
	next   time.Time // not before
}

// newPrefetcher makes the parts of a prefetcher whose other fields are set. pullRetry is the first pause after a pull
// by kubelet has failed.
func newPrefetcher(p prefetcher, events *hub, changed *changedSet, pullRetry time.Duration) *prefetcher {
	p.imagePlan = &imagePlan{nodes: map[string]*imageNode{}}
	p.judge = &imageJudge{
		imagePlan: p.imagePlan, table: p.table, events: events, changed: changed, cluster: p.cluster, lazy: p.lazy,
	}
	p.kubelet = &kubeletPuller{
		imagePlan: p.imagePlan, loop: p.loop, workers: p.workers, cluster: p.cluster, retry: pullRetry,
		tell: p.tell, news: p.judgeUsers,
	}
	p.sharing = &sharing{imagePlan: p.imagePlan, table: p.table, daemons: p.daemons}
	return &p
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

// mirrors notes that a node shares images in a session.
func (p *prefetcher) mirrors(from wire.Peer) {
	if p == nil || p.nodes[from.Node] == nil {
		return
	}
	p.nodes[from.Node].mirror = from.ID
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
			p.kubelet.pullHere(n)
		}
	}
	p.sharing.tellNeeded()
	for _, s := range p.table.services {
		p.judgeService(s)
	}
	now := time.Now()
	p.next = now.Add(imageShare * now.Sub(begin))
}

// judgeUsers judges the images of the services that use one.
func (p *prefetcher) judgeUsers(image string) {
	for _, s := range p.users[image] {
		p.judgeService(s)
	}
}

// judgeService judges the images of a service. If names of images were resolved anew, the plan is made anew.
func (p *prefetcher) judgeService(s *service) {
	if p.judge.judge(s) {
		p.touch()
	}
}

// tell sends a node's daemon its set of images, unless the daemon got it in this session.
func (p *prefetcher) tell(n *imageNode) {
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
		p.kubelet.heard(n, r)
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
