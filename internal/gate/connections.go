// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

const (
	// connectionsBatch is the number of flows that Connections reads at a time.
	connectionsBatch = 4096
	// maxPairs bounds the pairs that Connections tells apart.
	maxPairs = 65536
)

// Connection says that a client has open connections to a service.
type Connection struct {
	Client  netip.Addr
	Service netip.AddrPort
	Open    uint32
}

// Connections returns the pairs of a client address and a service address with the most established connections to
// pods of this node, at most n pairs, and the number of connections of all other pairs. It reads the whole flow table:
// what changes meanwhile may be missed or counted twice.
func (g *Gate) Connections(n int) (most []Connection, others uint32, err error) {
	type pair struct {
		client  gateAddr
		service gateServiceKey
	}
	pairs := map[pair]uint32{}
	keys, flows := make([]gateFlowKey, connectionsBatch), make([]gateFlow, connectionsBatch)
	var cursor ebpf.MapBatchCursor
	for end := false; !end; {
		got, err := g.objs.Flows.BatchLookup(&cursor, keys, flows, nil)
		if end = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !end {
			return nil, 0, fmt.Errorf("reading the flow table: %w", err)
		}
		for i, k := range keys[:got] {
			if flows[i].State != gateFlowStateFLOW_ESTABLISHED || g.podIsElsewhere(&flows[i]) {
				continue
			}
			p := pair{toAddr(g.clientOf(k)), gateServiceKey{Addr: k.Service, Port: k.ServicePort}}
			if _, known := pairs[p]; !known && len(pairs) == maxPairs {
				others++
				continue
			}
			pairs[p]++
		}
	}
	for p, open := range pairs {
		service := netip.AddrPortFrom(fromAddr(p.service.Addr), ntohs(p.service.Port))
		most = append(most, Connection{Client: fromAddr(p.client), Service: service, Open: open})
	}
	slices.SortFunc(most, func(a, b Connection) int {
		return cmp.Or(cmp.Compare(b.Open, a.Open), a.Client.Compare(b.Client), a.Service.Compare(b.Service))
	})
	for _, c := range most[min(n, len(most)):] {
		others += c.Open
	}
	return most[:min(n, len(most))], others, nil
}

// podIsElsewhere reports whether a flow is to a pod of another node, whose gate has the flow as well.
func (g *Gate) podIsElsewhere(f *gateFlow) bool {
	if f.Pod >= uint32(len(g.pods.items)) {
		return false
	}
	p := g.pods.at(f.Pod)
	return p.Generation == f.Generation && p.Node != 0
}
