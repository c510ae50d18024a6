// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"testing"

	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/distribution"
	"wangell.loutres.me/test/testutil/faultyhub"
)

// behind has a node use a cache of a registry.
func behind(hub *faultyhub.Hub, cache *distribution.Registry) func(*Config) {
	return func(c *Config) { c.Caches = map[string]string{hub.Host: "http://" + cache.Host} }
}

// With a cache, which is the distribution project's registry, an image leaves the registry once, the cache sends each
// blob once, and nodes get the rest from each other. Later the cache alone is enough.
func TestNodesPullThroughACache(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/model:v1", faultyhub.Noise(t, layerSize), faultyhub.Noise(t, layerSize))
	cache := distribution.StartCache(t, "http://"+hub.Host)
	f := newFabric(t)
	a, b, c := f.add("a", behind(hub, cache)), f.add("b", behind(hub, cache)), f.add("c", behind(hub, cache))
	pullAll(t, ref, a, b, c)
	var fromCaches, fromPeers float64
	for _, n := range []*node{a, b, c} {
		fromCaches, fromPeers = fromCaches+n.received(fromCache), fromPeers+n.received(fromPeer)
		if n.received(fromRegistry) > 0 || n.passed() > 0 {
			t.Errorf("%s: %v bytes from the registry, %v requests left to containerd", n.name, n.received(fromRegistry),
				n.passed())
		}
	}
	const size = 2 * layerSize
	t.Logf("the registry sent %d bytes, the cache %.0f, peers %.0f", sentOf(hub, layers), fromCaches, fromPeers)
	if sent := sentOf(hub, layers); sent > size*11/10 {
		t.Errorf("the registry sent %d bytes for an image of %d", sent, size)
	}
	if fromCaches < size || fromCaches > 1.1*size || fromPeers < 1.9*size {
		t.Errorf("%.0f bytes came from the cache, %.0f from peers, of an image of %d", fromCaches, fromPeers, size)
	}
	fixed := imageref.Fixed(ref, hub.Digest(t, ref))
	hub.Close()
	for _, n := range []*node{a, b, c} {
		n.stop()
		f.gone(n)
	}
	d := f.add("d", behind(hub, cache))
	pullAll(t, fixed, d)
	if got := d.received(fromCache); got < size || d.passed() > 0 {
		t.Errorf("%.0f bytes came from the cache, %v requests left to containerd", got, d.passed())
	}
}

// A cache that ends in the middle is passed: nodes go on with the registry.
func TestACacheThatEndsIsPassed(t *testing.T) {
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "team/passed:v1", faultyhub.Noise(t, 2*layerSize))
	hold := make(chan struct{})
	hub.Set(faultyhub.Fault{Hold: hold}) // the first half of the layer
	cache := distribution.StartCache(t, "http://"+hub.Host)
	f := newFabric(t)
	a, b := f.add("a", behind(hub, cache)), f.add("b", behind(hub, cache))
	done := make(chan struct{})
	go func() { defer close(done); pullAll(t, ref, a, b) }()
	containerdtest.Until(t, "a node has a piece from the cache", func() bool { return a.hasPiece() || b.hasPiece() })
	hub.Set(faultyhub.Fault{})
	if err := cache.Stop(); err != nil {
		t.Fatal(err)
	}
	close(hold)
	<-done
	for _, n := range []*node{a, b} {
		if n.passed() > 0 {
			t.Errorf("%s: %v requests left to containerd", n.name, n.passed())
		}
	}
	if got := a.received(fromRegistry) + b.received(fromRegistry); got == 0 {
		t.Error("nothing came from the registry")
	}
	if sent := sentOf(hub, layers); sent > 2*2*layerSize {
		t.Errorf("the registry sent %d bytes for a layer of %d", sent, 2*layerSize)
	}
}

func TestCachesAreURLs(t *testing.T) {
	for _, text := range []string{"", "cache:5000", "ftp://cache:5000", "http://cache:5000/v2", "http://"} {
		if err := CheckCaches(map[string]string{"docker.io": text}); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
	if err := CheckCaches(map[string]string{"docker.io": "http://cache:5000"}); err != nil {
		t.Error(err)
	}
}
