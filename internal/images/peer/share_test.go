// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"testing"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/faultyhub"
)

// mayNeed has nodes share what pods there may need of a repository.
func mayNeed(ref string, nodes ...*node) {
	for _, n := range nodes {
		n.mirror.Need([]string{imageref.Repository(ref)})
	}
}

// Images that no daemon pulls ahead of need, as with imagePull.when Wake, come from other nodes, too: each layer leaves
// the registry once.
func TestPullsOfWakesAreShared(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/wake:v1", faultyhub.Noise(t, layerSize), faultyhub.Noise(t, layerSize))
	f := newFabric(t)
	a, b, c := f.add("a"), f.add("b"), f.add("c")
	mayNeed(ref, a, b, c)
	if err := a.images.Pull(t.Context(), ref); err != nil { // as kubelet does
		t.Fatal(err)
	}
	for _, n := range []*node{b, c} {
		if err := n.images.Pull(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if got := n.received(fromPeer); got < 2*layerSize || n.passed() > 0 {
			t.Errorf("%s: %v bytes came from peers, %v requests were left to the registry", n.name, got, n.passed())
		}
	}
	if sent := sentOf(hub, layers); sent > 2*layerSize*11/10 {
		t.Errorf("the registry sent %d bytes for an image of %d", sent, 2*layerSize)
	}
}

// What a node had before its daemon started is shared as well.
func TestAnEarlierPullIsShared(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/earlier:v1", faultyhub.Noise(t, layerSize))
	f := newFabric(t)
	a, b := f.add("a"), f.add("b")
	if err := a.images.Pull(t.Context(), ref); err != nil { // past the mirror, which shares nothing yet
		t.Fatal(err)
	}
	mayNeed(ref, a, b)
	f.untilShared(a, len(layers))
	if err := b.images.Pull(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if got := b.received(fromPeer); got < layerSize || b.passed() > 0 {
		t.Errorf("%v bytes came from the peer, %v requests were left to the registry", got, b.passed())
	}
}

// An image that the registry does not give to everybody was pulled with credentials: a node passes it neither to other
// nodes nor to clients of its own containerd, although a service there may need the repository.
func TestPrivateImagesStayOnTheirNode(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/secret:v1", faultyhub.Noise(t, layerSize))
	top := hub.Digest(t, ref)
	f := newFabric(t)
	a, b := f.add("a"), f.add("b")
	if err := a.images.Pull(t.Context(), ref); err != nil { // as kubelet does, with the credentials of a pod
		t.Fatal(err)
	}
	hub.Set(faultyhub.Fault{Private: true})
	mayNeed(ref, a, b)
	k, _ := keyOf(imageref.Repository(ref), digest.Digest(top))
	containerdtest.Until(t, "the node has asked whether everybody gets it", func() bool {
		a.mirror.mu.Lock()
		defer a.mirror.mu.Unlock()
		return a.mirror.public[k].err != nil
	})
	for _, n := range []*node{a, b} {
		if err := n.images.Pull(t.Context(), imageref.Fixed(ref, top)); err == nil {
			t.Errorf("%s: pulled without credentials", n.name)
		}
	}
	layer, _ := keyOf(imageref.Repository(ref), digest.Digest(layers[0]))
	a.mirror.mu.Lock()
	defer a.mirror.mu.Unlock()
	if len(a.mirror.stored) > 0 || a.mirror.mayShare(layer) || a.mirror.mayShare(k) {
		t.Errorf("%d blobs are shared", len(a.mirror.stored))
	}
}

// A repository of which the daemon no longer pulls an image is shared as far as the registry gives it to everybody.
func TestARepositoryThatIsNoLongerPlannedIsChecked(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/changes:v1", faultyhub.Noise(t, 1<<20))
	f := newFabric(t)
	a := f.add("a")
	mayNeed(ref, a)
	pullAll(t, ref, a)
	f.untilShared(a, len(layers))
	a.mirror.Want(nil)
	f.untilShared(a, len(layers))
	hub.Set(faultyhub.Fault{Private: true})
	a.mirror.Need(nil)
	a.mirror.mu.Lock()
	defer a.mirror.mu.Unlock()
	if len(a.mirror.stored) > 0 || len(a.mirror.public) > 0 || len(a.mirror.sizes) > 0 {
		t.Errorf("%d blobs are shared of a repository that nothing needs", len(a.mirror.stored))
	}
}
