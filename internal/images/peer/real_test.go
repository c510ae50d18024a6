// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/faultyhub"
	"wangell.loutres.me/test/testutil/freeport"
)

func TestMain(m *testing.M) { containerdtest.Main(m) }

// fabric is the controller's part: it answers mirrors from an index, as package controller does.
type fabric struct {
	t      testing.TB
	master wire.Key

	mu    sync.Mutex
	index blobindex.Index
	nodes map[string]*node
	away  bool // the controller does not answer
}

func newFabric(t testing.TB) *fabric {
	return &fabric{t: t, master: wire.Key{1, 2, 3}, nodes: map[string]*node{}}
}

// node is a node with a mirror and a containerd.
type node struct {
	name   string
	mirror *Mirror
	images *cri.Images
	stop   func()

	mu      sync.Mutex
	reports []wire.ImageReport
}

// add starts a node with a containerd that asks its mirror.
func (f *fabric) add(name string, change ...func(*Config)) *node {
	f.t.Helper()
	return f.addTo(containerdtest.Start(f.t, 0), name, change...)
}

// addTo starts a node with a containerd that runs.
func (f *fabric) addTo(c *containerdtest.Containerd, name string, change ...func(*Config)) *node {
	f.t.Helper()
	n := &node{name: name, images: c.Images(f.t)}
	store, ctx := n.images.Content(context.Background())
	key := f.master.ForNode(name)
	cfg := Config{
		Content: store, Dir: c.Root + "/mirror", Hosts: c.Hosts, Local: freeport.Reserve(f.t), Listen: freeport.Reserve(f.t),
		Key:    func() wire.Key { return key },
		Send:   f.sender(n),
		Images: n.images.Digests,
		Log:    slog.New(slog.NewTextHandler(f.t.Output(), nil)).With("node", name),
	}
	for _, do := range change {
		do(&cfg)
	}
	if err := InstallHosts(c.Hosts, cfg.Local); err != nil {
		f.t.Fatal(err)
	}
	var err error
	if n.mirror, err = New(cfg); err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	f.nodes[name] = n
	f.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); n.mirror.Run(ctx) }()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	f.t.Cleanup(n.stop)
	n.mirror.BeginSession(f.sender(n))
	return n
}

// sender returns a function that sends messages of a node.
func (f *fabric) sender(n *node) func(wire.Message) {
	return func(m wire.Message) { f.receive(n, m) }
}

// receive answers a mirror.
func (f *fabric) receive(from *node, m wire.Message) {
	report, ok := m.(*wire.Blobs)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return
	}
	now := time.Now()
	for _, b := range report.Blobs {
		a, ok := f.index.Report(from.name, blobindex.Report{
			Key:  blobindex.Key{Repository: report.Repository, Digest: b.Digest},
			Size: b.Size, State: blobindex.State(b.State), Have: swarm.Set(b.Have), NoRegistry: report.NoRegistry,
		}, now, rand.IntN)
		if !ok {
			continue
		}
		h := &wire.Holders{
			Repository: a.Repository, Digest: a.Digest, Size: a.Size, PauseMillis: uint16(a.Pause.Milliseconds()),
			Lease: a.Lease, Expires: uint64(now.Add(time.Hour).Unix()),
		}
		for _, o := range a.Holders {
			h.Holders = append(h.Holders, wire.Holder{
				Mirror: *f.nodes[o.Node].mirror.Identity(), Complete: o.Complete, Have: o.Have,
				Grant: enrolment.NewGrant(f.master.ForNode(o.Node), from.mirror.Identity().Fingerprint, a.Digest, h.Expires),
			})
		}
		go from.mirror.Receive(h)
	}
}

// gone tells the index that a node is gone, as its session's end does.
func (f *fabric) gone(n *node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index.Forget(n.name)
}

// pull has containerd pull an image that the node shares, and notes that it has it.
func (n *node) pull(ctx context.Context, ref string) error {
	n.mirror.Want([]wire.WantedImage{{Ref: ref, Policy: wire.ImageIfNotPresent}})
	if err := n.images.Pull(ctx, ref); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	image, _, err := n.images.Look(ctx, ref)
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.reports = []wire.ImageReport{{Ref: ref, State: wire.ImagePresent, Digest: image.Digest}}
	n.mu.Unlock()
	n.mirror.Scan()
	return nil
}

// pullAll has several nodes pull at once.
func pullAll(t *testing.T, ref string, nodes ...*node) {
	t.Helper()
	errs := make(chan error)
	for _, n := range nodes {
		go func() { errs <- n.pull(t.Context(), ref) }()
	}
	for range nodes {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// received is what a mirror has received from a source, in bytes.
func (n *node) received(source string) float64 {
	return testutil.ToFloat64(n.mirror.metrics.received.WithLabelValues(source))
}

// hasPiece reports whether a node has a part of a blob of several pieces.
func (n *node) hasPiece() bool {
	n.mirror.mu.Lock()
	defer n.mirror.mu.Unlock()
	for _, d := range n.mirror.downloads {
		if d.pieces > 1 && d.have.Len() > 0 {
			return true
		}
	}
	return false
}

// sentOf sums up what a registry has sent of layers.
func sentOf(hub *faultyhub.Hub, layers []string) (sum int64) {
	for _, l := range layers {
		bytes, _ := hub.Sent(l)
		sum += bytes
	}
	return sum
}

// untilShared waits until the index knows that a node has all of a repository's last image.
func (f *fabric) untilShared(n *node, layers int) {
	f.t.Helper()
	containerdtest.Until(f.t, n.name+" shares its image", func() bool {
		n.mirror.mu.Lock()
		defer n.mirror.mu.Unlock()
		return len(n.mirror.stored) >= layers+2 && len(n.mirror.changes) == 0 && len(n.mirror.downloads) == 0
	})
}

const layerSize = 12 << 20 // three pieces, and a little

// Three nodes that pull at once get each piece from the registry once.
func TestThreeNodesPullAnImageOnce(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/model:v1", faultyhub.Noise(t, layerSize), faultyhub.Noise(t, layerSize))
	f := newFabric(t)
	a, b, c := f.add("a"), f.add("b"), f.add("c")
	pullAll(t, ref, a, b, c)
	size, sent := int64(2*layerSize), sentOf(hub, layers)
	t.Logf("the registry sent %d bytes, %.3f of the image; peers: %.0f %.0f %.0f", sent, float64(sent)/float64(size),
		a.received(fromPeer), b.received(fromPeer), c.received(fromPeer))
	if float64(sent) > 1.1*float64(size) {
		t.Errorf("the registry sent %d bytes for an image of %d", sent, size)
	}
	for _, n := range []*node{a, b, c} {
		if passed := testutil.ToFloat64(n.mirror.metrics.passed); passed > 0 {
			t.Errorf("%s: %v requests were left to the registry", n.name, passed)
		}
		f.untilShared(n, len(layers)) // and no file is left
	}
}

// A registry that is gone is not missed while a node has the image.
func TestANodeGetsWhatAnotherOneHasWithoutTheRegistry(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/gone:v1", faultyhub.Noise(t, layerSize))
	f := newFabric(t)
	a, b := f.add("a"), f.add("b")
	pullAll(t, ref, a)
	f.untilShared(a, len(layers))
	a.mu.Lock()
	fixed := imageref.Fixed(ref, a.reports[0].Digest) // as the controller names it to other nodes
	a.mu.Unlock()
	hub.Close()
	pullAll(t, fixed, b)
	if got := b.received(fromPeer); got < layerSize {
		t.Errorf("%v bytes came from the peer", got)
	}
}

// Layers that wait for their turn with the only node that has them, longer than for one that nobody has, are not given
// up: each byte is sent once.
func TestLayersWaitForTheOnlyNodeThatHasThem(t *testing.T) {
	hub := faultyhub.New(t)
	var noise []v1.Layer
	for range 3 {
		noise = append(noise, faultyhub.Noise(t, layerSize))
	}
	ref, layers := hub.Push(t, "team/turns:v1", noise...)
	f := newFabric(t)
	a := f.add("a", func(c *Config) { c.Rate = layerSize / 4 }) // the first layer takes 4 s, the last begins after 8
	b := f.add("b")
	pullAll(t, ref, a)
	f.untilShared(a, len(layers))
	fixed := imageref.Fixed(ref, hub.Digest(t, ref))
	hub.Close()
	b.mirror.registries.failed(imageref.Repository(ref), errBusy, time.Now().Add(time.Minute)) // it was found out
	pullAll(t, fixed, b)
	if got := b.received(fromPeer); b.passed() > 0 || got > 3.1*layerSize {
		t.Errorf("%v bytes came from the peer, %v requests were left to containerd", got, b.passed())
	}
}

// A node that dies in the middle of it, with pieces that only it has, does not stop the others.
func TestAPeerThatDiesIsReplaced(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/dies:v1", faultyhub.Noise(t, 4*layerSize))
	hub.Set(faultyhub.Fault{Pause: 20 * time.Millisecond}) // a piece takes 1.3 s, and each node has more than one to fetch
	f := newFabric(t)
	a, b, c := f.add("a"), f.add("b"), f.add("c")
	dying, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.pull(dying, ref) }()
	go func() {
		containerdtest.Until(t, "it has a piece", c.hasPiece)
		cancel()
		c.stop()
		f.gone(c)
	}()
	pullAll(t, ref, a, b)
	if err := <-ended; err == nil {
		t.Error("the node that was to die has pulled all of it")
	}
	t.Logf("the registry sent %.2f of the image", float64(sentOf(hub, layers))/(4*layerSize))
}

// A peer that sends something else is found out, not asked again, and the image is right.
func TestAPeerThatSendsGarbageIsDropped(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/garbage:v1", faultyhub.Noise(t, layerSize))
	f := newFabric(t)
	liar, honest := f.add("liar", func(c *Config) { c.Content = corrupting{c.Content} }), f.add("honest")
	pullAll(t, ref, liar)
	f.untilShared(liar, len(layers))
	pullAll(t, ref, honest)
	m := &honest.mirror.metrics
	if banned, passed := testutil.ToFloat64(m.banned), testutil.ToFloat64(m.passed); banned != 1 || passed > 0 {
		t.Errorf("%v pieces found wrong, %v requests left to the registry", banned, passed)
	}
	if sent := sentOf(hub, layers); sent > 2*layerSize*11/10 {
		t.Errorf("the registry sent %d bytes", sent)
	}
}

// Without a controller nodes get images from the registry as before.
func TestNodesPullWithoutAController(t *testing.T) {
	hub := faultyhub.New(t)
	ref, _ := hub.Push(t, "team/alone:v1", faultyhub.Noise(t, layerSize))
	f := newFabric(t)
	f.away = true
	n := f.add("a")
	pullAll(t, ref, n)
	if passed := testutil.ToFloat64(n.mirror.metrics.passed); passed > 0 || n.received(fromRegistry) < layerSize {
		t.Errorf("%v requests left to the registry, %v bytes by the mirror", passed, n.received(fromRegistry))
	}
}

// While the controller does not answer, only the first download waits for it.
func TestDownloadsDoNotWaitAgainForAControllerThatIsAway(t *testing.T) {
	f := newFabric(t)
	m := f.add("a").mirror
	k := blobindex.Key{Repository: "registry.example/x"}
	begin := func() (waits bool) {
		t.Helper()
		k.Digest[0]++
		m.mu.Lock()
		defer m.mu.Unlock()
		d, err := m.begin(t.Context(), k, 1, false)
		if err != nil {
			t.Fatal(err)
		}
		defer m.drop(d, context.Canceled)
		d.users--
		return !m.cfg.Limits.Silent(d.answered, d.pause, time.Now())
	}
	first := begin()
	m.mu.Lock()
	m.unheard = true
	m.mu.Unlock()
	second := begin()
	m.Receive(&wire.Holders{Repository: "registry.example/y"})
	if third := begin(); !first || second || !third {
		t.Errorf("waits: %v at first, %v while the controller is away, %v once it has answered", first, second, third)
	}
}

func TestTimeInWhichTheMirrorWasStalledDoesNotCount(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(1e12 + ms)) }
	for _, c := range []struct{ answered, last, now, want int }{
		{0, 1000, 1100, 0},
		{0, 1000, 1199, 0},        // a little late
		{0, 1000, 4000, 2900},     // it waited for 1,100 ms
		{1500, 1000, 4000, 1500},  // begun when nothing was to be done
		{1000, 1000, 10000, 9900}, // answered just before
		{0, -1 << 40, 100, 0},     // the first turn
	} {
		if got := excused(at(c.answered), at(c.last), at(c.now)); !got.Equal(at(c.want)) {
			t.Errorf("answered at %d, last turn at %d, now %d: got %v, want %v", c.answered, c.last, c.now, got, at(c.want))
		}
	}
}

// What needs credentials that only kubelet has, and what no service uses, is left to the registry.
func TestImagesOfKubeletAreNotShared(t *testing.T) {
	hub := faultyhub.New(t)
	ref, _ := hub.Push(t, "team/private:v1", faultyhub.Noise(t, 1<<20))
	f := newFabric(t)
	a := f.add("a")
	a.mirror.Want([]wire.WantedImage{{Ref: ref, Policy: wire.ImageNever}}) // kubelet pulls it, with credentials
	if err := a.images.Pull(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if got := a.received(fromRegistry); got > 0 {
		t.Errorf("the mirror fetched %v bytes of it", got)
	}
}
