// SPDX-License-Identifier: Apache-2.0

package prefetch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/faultyhub"
)

func TestMain(m *testing.M) { containerdtest.Main(m) }

// realNode is a node with a real containerd, of which the CRI plugin pulls images.
type realNode struct {
	t      *testing.T
	client *client.Client
	socket string
	*keeping
}

// keeping is a Keeper and what it has reported.
type keeping struct {
	keeper *Keeper
	stop   func()

	mu      sync.Mutex
	reports map[string]wire.ImageReport
}

// newRealNode starts a containerd and a daemon's Keeper. Its images are in a file system of size bytes, or on the disk
// if that is 0.
func newRealNode(t *testing.T, size int) *realNode {
	t.Helper()
	c := containerdtest.Start(t, size)
	n := &realNode{t: t, client: c.Client, socket: c.Socket}
	n.start()
	t.Cleanup(func() { n.stop() })
	return n
}

// start starts a daemon's Keeper.
func (n *realNode) start() {
	store, err := cri.OpenImages("unix://" + n.socket)
	if err != nil {
		n.t.Fatal(err)
	}
	k := &keeping{reports: map[string]wire.ImageReport{}}
	k.keeper = New(Config{
		Store: store, FirstRetry: 50 * time.Millisecond, LastRetry: 200 * time.Millisecond,
		LookAgain: 100 * time.Millisecond, Report: func(r wire.ImageReport) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.reports[r.Ref] = r
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); k.keeper.Run(ctx) }()
	k.stop = sync.OnceFunc(func() { cancel(); <-done; store.Close() })
	n.keeping = k
}

func (n *realNode) until(what string, is func() bool) {
	n.t.Helper()
	containerdtest.Until(n.t, what, is)
}

// untilState waits for a report and returns it.
func (n *realNode) untilState(ref string, state wire.ImageState) (r wire.ImageReport) {
	n.t.Helper()
	n.until(fmt.Sprintf("%s has state %d", ref, state), func() bool {
		k := n.keeping
		k.mu.Lock()
		defer k.mu.Unlock()
		r = k.reports[ref]
		return r.State == state
	})
	return r
}

// partial returns how many bytes of a blob containerd has of a download that is not complete.
func (n *realNode) partial(digest string) (offset int64) {
	n.t.Helper()
	active, err := n.client.ContentStore().ListStatuses(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	for _, s := range active {
		if strings.HasSuffix(s.Ref, digest) {
			offset = s.Offset
		}
	}
	return offset
}

const layerSize = 4 << 20

// A download that is cut goes on where it ended, also when the daemon is killed in between: what the registry sends of
// the layer in total is its size, and not twice the first part.
func TestADownloadThatIsCutGoesOn(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/cut:v1", faultyhub.Noise(t, layerSize))
	hub.Set(faultyhub.Fault{Cut: layerSize / 4})
	n.keeper.Want(want(ref))
	r := n.untilState(ref, wire.ImagePresent)
	sent, requests := hub.Sent(layers[0])
	t.Logf("cut after each quarter: %d bytes sent in %d requests for a layer of about %d", sent, requests, layerSize)
	if r.Digest == "" || requests < 4 {
		t.Errorf("%d requests, %+v", requests, r)
	}
	if sent > layerSize*5/4 {
		t.Errorf("the registry sent %d bytes in %d requests: downloads begin anew", sent, requests)
	}
}

// The next daemon goes on with the pull of one that was killed, and nothing of it is left behind.
func TestTheNextDaemonGoesOnWithAPull(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/killed:v1", faultyhub.Noise(t, layerSize))
	hub.Set(faultyhub.Fault{Hold: make(chan struct{})})
	n.keeper.Want(want(ref))
	n.until("half of it is there", func() bool { return n.partial(layers[0]) > layerSize/4 })
	n.stop()
	hub.Set(faultyhub.Fault{})
	n.start()
	n.keeper.Want(want(ref))
	n.untilState(ref, wire.ImagePresent)
	sent, requests := hub.Sent(layers[0])
	t.Logf("%d bytes sent in %d requests for a layer of about %d", sent, requests, layerSize)
	if n.partial(layers[0]) != 0 {
		t.Error("a partial download is left")
	}
}

// When another node has said which digest a tag stands for, the pull of the tag goes on, so that each layer is fetched
// once: also if the digest is that of another image, which is pulled then.
func TestThePullOfATagGoesOnForItsDigest(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	for name, more := range map[string][]v1.Layer{"same": nil, "moved": {faultyhub.Noise(t, 1<<16)}} {
		common := faultyhub.Noise(t, layerSize)
		ref, _ := hub.Push(t, "team/"+name+":v1", common)
		other, layers := hub.Push(t, "team/"+name+":v2", append(more, common)...)
		fixed := imageref.Fixed(ref, hub.Digest(t, other))
		hold := make(chan struct{})
		hub.Set(faultyhub.Fault{Hold: hold})
		n.keeper.Want(want(ref))
		n.until("half of it is there", func() bool { return n.partial(layers[len(layers)-1]) > layerSize/4 })
		n.keeper.Want(want(fixed))
		n.untilState(fixed, wire.ImagePulling)
		hub.Set(faultyhub.Fault{})
		close(hold)
		if r := n.untilState(fixed, wire.ImagePresent); !strings.HasSuffix(fixed, "@"+r.Digest) {
			t.Errorf("%s: reported %+v", fixed, r)
		}
		for _, l := range layers {
			if _, requests := hub.Sent(l); requests != 1 {
				t.Errorf("%s: layer %s was fetched %d times", fixed, l, requests)
			}
		}
	}
}

// A layer that is not what its digest says is refused, and is not kept.
func TestACorruptLayerIsRefused(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	ref, _ := hub.Push(t, "team/corrupt:v1", faultyhub.Noise(t, layerSize/4))
	hub.Set(faultyhub.Fault{Corrupt: true})
	n.keeper.Want(want(ref))
	r := n.untilState(ref, wire.ImageFailed)
	t.Logf("%s: %s", r.Reason, r.Message)
	if r.Reason != cri.ReasonPullFailed || !strings.Contains(r.Message, "digest") {
		t.Errorf("reported %+v", r)
	}
	hub.Set(faultyhub.Fault{})
	n.untilState(ref, wire.ImagePresent)
}

// A slow registry is waited for, and told of.
func TestASlowRegistryIsWaitedFor(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	ref, _ := hub.Push(t, "team/slow:v1", faultyhub.Noise(t, layerSize/4))
	hub.Set(faultyhub.Fault{Pause: 50 * time.Millisecond})
	n.keeper.Want(want(ref))
	n.untilState(ref, wire.ImagePulling)
	n.untilState(ref, wire.ImagePresent)
}

// A registry that limits requests is asked again, and then sends each layer once.
func TestALimitOfTheRegistryIsWaitedFor(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/limited:v1", faultyhub.Noise(t, layerSize/4))
	hub.Set(faultyhub.Fault{RetryAfter: 1})
	n.keeper.Want(want(ref))
	n.until("the registry has refused a request", func() bool { return hub.Limited() > 0 })
	hub.Set(faultyhub.Fault{})
	n.untilState(ref, wire.ImagePresent)
	if _, requests := hub.Sent(layers[0]); requests != 1 {
		t.Errorf("the layer was fetched %d times", requests)
	}
}

// Two images with layers in common: each layer is fetched once, whatever the order.
func TestACommonLayerIsFetchedOnce(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	common := faultyhub.Noise(t, layerSize/4)
	a, layersA := hub.Push(t, "team/a:v1", common, faultyhub.Noise(t, 1<<16))
	b, layersB := hub.Push(t, "team/b:v1", common, faultyhub.Noise(t, 1<<16))
	n.keeper.Want(want(a, b)) // both at once
	n.untilState(a, wire.ImagePresent)
	n.untilState(b, wire.ImagePresent)
	var sent int64
	for _, l := range slices.Compact(append(layersA, layersB...)) {
		bytes, requests := hub.Sent(l)
		if requests != 1 {
			t.Errorf("layer %s was fetched %d times", l, requests)
		}
		sent += bytes
	}
	shared, _ := hub.Sent(layersA[0])
	sent -= shared // named by both
	metrics := &n.keeper.metrics
	// A layer that both pulls wait for is counted by both.
	if got := int64(testutil.ToFloat64(metrics.bytes.WithLabelValues("registry"))); got < sent || got > sent+shared {
		t.Errorf("%d bytes are counted, %d were sent", got, sent)
	}
	if n := testutil.CollectAndCount(metrics.phases); n != 2 {
		t.Errorf("%d phases are told", n)
	}
}

// A full disk is told of, nothing half-kept stays in its way, and once there is room the image comes.
func TestAFullDiskIsToldOfAndLeavesNothing(t *testing.T) {
	n := newRealNode(t, 16<<20)
	hub := faultyhub.New(t)
	big, bigLayers := hub.Push(t, "team/big:v1", faultyhub.Noise(t, 24<<20))
	small, _ := hub.Push(t, "team/small:v1", faultyhub.Noise(t, 1<<20))
	n.keeper.Want(want(big))
	r := n.untilState(big, wire.ImageFailed)
	if r.Reason != cri.ReasonDiskFull || !strings.Contains(r.Message, "no space left on device") {
		t.Errorf("reported %+v", r)
	}
	t.Logf("kept of the big layer: %d bytes", n.partial(bigLayers[0]))
	n.keeper.Want(want(small))
	n.untilState(small, wire.ImagePresent)
}

// An image that an administrator removes although it is pinned is pulled again.
func TestAPinnedImageThatIsRemovedIsPulledAgainFromTheRegistry(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/removed:v1", faultyhub.Noise(t, 1<<16))
	n.keeper.Want(want(ref))
	n.untilState(ref, wire.ImagePresent)
	remove := func() {
		list, err := n.client.ImageService().List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list { // also by its digest
			err := n.client.ImageService().Delete(t.Context(), i.Name, images.SynchronousDelete())
			if err != nil && !errdefs.IsNotFound(err) {
				t.Fatal(err)
			}
		}
	}
	n.until("it is fetched again", func() bool {
		remove() // what is pulled before the last name is gone needs no fetching
		_, requests := hub.Sent(layers[0])
		return requests > 1
	})
	n.until("it is pinned again", func() bool {
		i, err := n.client.ImageService().Get(t.Context(), ref)
		return err == nil && i.Labels[pinLabel] == "pinned"
	})
}

// The volumes that an image declares are reported, as many as a report can have.
func TestVolumesOfAnImageAreReported(t *testing.T) {
	n := newRealNode(t, 0)
	hub := faultyhub.New(t)
	declared := map[string]struct{}{"/data": {}, "/var/log": {}}
	ref, _ := hub.PushConfig(t, "team/db:v1", func(c *v1.Config) { c.Volumes = declared }, faultyhub.Noise(t, 1000))
	n.keeping.keeper.Want(want(ref))
	r := n.untilState(ref, wire.ImagePresent)
	if !slices.Equal(r.Volumes, []string{"/data", "/var/log"}) {
		t.Errorf("%q", r.Volumes)
	}
	many := slices.Repeat([]string{"/" + strings.Repeat("v", 99)}, 100)
	if got := reportable(many); len(got) != 10 {
		t.Errorf("%d of 100 long names are reported", len(got))
	}
	if got := reportable(slices.Repeat([]string{"/v"}, 100)); len(got) != wire.MaxImageVolumes {
		t.Errorf("%d of 100 short names are reported", len(got))
	}
}
