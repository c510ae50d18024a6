// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
)

// nodesOf returns node-1 to node-n.
func nodesOf(n int) []scored {
	out := make([]scored, n)
	for i := range out {
		out[i] = score(fmt.Sprintf("node-%d", i+1))
	}
	return out
}

// vipNumber returns the i-th of many VIPs.
func vipNumber(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 46, byte(i >> 8), byte(i)})
}

func TestVIPsAreDividedEvenly(t *testing.T) {
	const vips = 10_000
	for _, n := range []int{1, 2, 3, 10, 50} {
		count := map[string]int{}
		for i := range vips {
			count[owner(vipNumber(i), nodesOf(n)).name]++
		}
		// The counts are binomial; a deviation of five standard deviations does not happen by chance.
		mean := vips / n
		most := mean + 5*int(math.Sqrt(float64(mean)))
		for _, node := range nodesOf(n) {
			if c := count[node.name]; c > most || c < 2*mean-most {
				t.Errorf("%d nodes: %s has %d of %d VIPs, want about %d", n, node.name, c, vips, mean)
			}
		}
	}
}

func TestOnlyTheVIPsOfALeavingNodeMove(t *testing.T) {
	all := nodesOf(7)
	without := append(append([]scored{}, all[:3]...), all[4:]...)
	gone := all[3].name
	moved := map[string]int{}
	for i := range 5000 {
		vip := vipNumber(i)
		before, after := owner(vip, all).name, owner(vip, without).name
		if before != gone && before != after {
			t.Fatalf("%v moves from %s to %s, although %s left", vip, before, after, gone)
		}
		if before == gone {
			moved[after]++
		}
	}
	if len(moved) != 6 {
		t.Errorf("the VIPs of the node that left are on %v, want all six others", moved)
	}
}

// Nodes of different versions must agree on the owner; docs/protocol.md has these examples.
func TestOwnerIsAsTheProtocolSpecifies(t *testing.T) {
	nodes := nodesOf(3)
	for vip, want := range map[string]string{
		"10.46.100.105": "node-3", "10.46.100.1": "node-1", "10.46.100.2": "node-1", "192.0.2.1": "node-2",
	} {
		got := owner(netip.MustParseAddr(vip), nodes).name
		reversed := []scored{nodes[2], nodes[1], nodes[0]}
		if again := owner(netip.MustParseAddr(vip), reversed).name; again != got {
			t.Errorf("%s: %s or %s, depending on the order of the nodes", vip, got, again)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", vip, got, want)
		}
	}
	if got := owner(vipNumber(1), nil).name; got != "" {
		t.Errorf("without nodes: %q", got)
	}
}
