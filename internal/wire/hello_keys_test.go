// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// openOne opens a HELLO as a server does to which nothing was sent before.
func openOne(d []byte, master Key) (hello, Key, error) {
	return newHelloKeys(master).open(d, netip.MustParseAddr("192.0.2.1"), time.Unix(1e9, 0))
}

// sealed returns the HELLO of a node, with its own key or that of another node.
func sealed(node, key string) []byte { return newHelloOf(node).seal(testKey.ForNode(key), newNonce()) }

// Strangers at one address, or everywhere, do not keep out a node that was there before, nor those at other addresses
// a node that was not.
func TestStrangersDoNotKeepNodesOut(t *testing.T) {
	stranger, honest := netip.MustParseAddr("192.0.2.66"), netip.MustParseAddr("192.0.2.1")
	k := newHelloKeys(testKey)
	for k.unknown.Share(stranger, honest) {
		k = newHelloKeys(testKey) // they would share what one source may do
	}
	now := time.Unix(1e9, 0)
	if _, _, err := k.open(sealed("known", "known"), honest, now); err != nil {
		t.Fatal(err)
	}
	derived := func(from func(int) netip.Addr, n int) (count int) {
		d := sealed("invented", "another")
		for i := range n {
			switch _, _, err := k.open(bytes.Clone(d), from(i), now); {
			case errors.Is(err, errSeal):
				count++
			case !errors.Is(err, errLimit):
				t.Fatal(err)
			}
		}
		return count
	}
	if n := derived(func(int) netip.Addr { return stranger }, 4*sourceHellos.Burst); n != sourceHellos.Burst {
		t.Errorf("%d keys were derived for one source, want %d", n, sourceHellos.Burst)
	}
	if _, _, err := k.open(sealed("new", "new"), honest, now); err != nil {
		t.Errorf("a new node at another address: %v", err)
	}
	anywhere := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	if n := derived(anywhere, 4*allHellos.Burst); n > allHellos.Burst {
		t.Errorf("%d keys were derived for all sources, want at most %d", n, allHellos.Burst)
	}
	for _, node := range []string{"known", "new"} {
		if h, key, err := k.open(sealed(node, node), stranger, now); err != nil || h.node != node ||
			key != testKey.ForNode(node) {
			t.Errorf("the known node %s: %+v, %v", node, h, err)
		}
		if _, _, err := k.open(sealed(node, "another"), stranger, now); !errors.Is(err, errSeal) {
			t.Errorf("a HELLO of %s with another key: %v", node, err)
		}
	}
	// The allowance comes back.
	now = now.Add(time.Duration(allHellos.Burst) * allHellos.Pause)
	if _, _, err := k.open(sealed("newer", "newer"), honest, now); err != nil {
		t.Errorf("a new node after the flood: %v", err)
	}
}

func TestOnlyNodesThatHaveProvedThemselvesAreKnown(t *testing.T) {
	k := newHelloKeys(testKey)
	from, now := netip.MustParseAddr("192.0.2.1"), time.Unix(1e9, 0)
	if _, _, err := k.open(sealed("a", "b"), from, now); !errors.Is(err, errSeal) || len(k.known) != 0 {
		t.Errorf("%v, known %d", err, len(k.known))
	}
	for i := range maxHelloKeys + 10 {
		k.keep(fmt.Sprint(i), &helloKey{})
	}
	if len(k.known) != maxHelloKeys {
		t.Errorf("%d are known, want %d", len(k.known), maxHelloKeys)
	}
}
