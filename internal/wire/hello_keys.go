// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/cipher"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/quota"
)

// A HELLO names a node, whose key takes two derivations. Those of nodes that have proved themselves are kept: then a
// HELLO that names one costs a single AEAD operation, genuine or not. For other names the derivations are limited, per
// source and in all, so that strangers can neither keep the reader busy nor keep known nodes from coming back.
const (
	// maxHelloKeys is the number of nodes whose keys are kept.
	maxHelloKeys = maxPeers
	// helloSources is the number of buckets for sources.
	helloSources = 1024
)

var (
	// sourceHellos limits the HELLOs of unknown nodes from one source. All daemons of a test may be at one address.
	sourceHellos = quota.Rate{Burst: 2048, Pause: 20 * time.Millisecond}
	// allHellos limits those of all sources together: 10,000 in a second are about 5 % of a core.
	allHellos = quota.Rate{Burst: 2 * maxPeers, Pause: 100 * time.Microsecond}
)

// errStrangers is the reason for dropping a HELLO of a node that is not known.
var errStrangers = fmt.Errorf("HELLO: %w: too many of nodes that are not known", errLimit)

// helloKey opens the HELLOs of one node.
type helloKey struct {
	key  Key
	open cipher.AEAD
}

// newHelloKey derives the key of a node.
func newHelloKey(master Key, node string) *helloKey {
	key := master.ForNode(node)
	return &helloKey{key: key, open: handshakeSeal(key, useHello)}
}

// helloKeys are the keys of the nodes that HELLOs name. They may be used from several goroutines at once. Time is a
// parameter.
type helloKeys struct {
	master Key

	mu      sync.Mutex
	known   map[string]*helloKey // by node
	unknown *quota.Sources
}

func newHelloKeys(master Key) *helloKeys {
	return &helloKeys{
		master: master, known: map[string]*helloKey{},
		unknown: quota.NewSources(helloSources, sourceHellos, allHellos),
	}
}

// open opens a HELLO that came from an address, and overwrites d. It fails with errLimit, before it derives anything,
// if there were too many HELLOs of nodes that are not known.
func (k *helloKeys) open(d []byte, from netip.Addr, now time.Time) (h hello, key Key, err error) {
	if len(d) != nodeHeader+nonceSize+helloSize+tagSize {
		return h, key, errNoise
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	name := d[clearHeader+1:][:min(int(d[clearHeader]), maxNode)]
	if known := k.known[string(name)]; known != nil {
		return openHelloWith(d, known)
	}
	if !k.unknown.Take(from, now) {
		return h, key, errStrangers
	}
	node, err := helloNode(d)
	if err != nil {
		return h, key, err
	}
	fresh := newHelloKey(k.master, node)
	if h, key, err = openHelloWith(d, fresh); err == nil {
		k.keep(node, fresh)
	}
	return h, key, err
}

// keep, with k.mu held, keeps the key of a node that has proved itself, in place of any other if there are too many.
func (k *helloKeys) keep(node string, key *helloKey) {
	if len(k.known) >= maxHelloKeys {
		for other := range k.known {
			delete(k.known, other)
			break
		}
	}
	k.known[node] = key
}
