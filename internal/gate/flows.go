// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
)

const (
	// connectionsBatch is the number of flows that Connections reads at a time.
	connectionsBatch = 4096
	// maxPairs bounds the number of pairs that Connections counts separately.
	maxPairs = 65536
)

// Connection says that a client has open connections to a service.
type Connection struct {
	Client  netip.Addr
	Service netip.AddrPort
	Open    uint32
}

// Connections returns the pairs of a client address and a service address with the most established connections to pods
// of this node, at most n pairs, and the number of connections of all other pairs. It reads the whole flow table: a
// connection that begins or ends meanwhile may be missed or counted twice.
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

// endRounds bounds how many times EndFlows walks the flow table: a walk through a changing table may miss flows.
const endRounds = 4

// EndFlows ends the open flows at service addresses: each gate sends a RST to the sides that are on its node or enter
// the cluster there. It returns the number of flows that it has ended.
func (g *Gate) EndFlows(addrs ...netip.AddrPort) (int, error) {
	at := make(map[gateServiceKey]bool, len(addrs))
	for _, a := range addrs {
		at[toServiceKey(a)] = true
	}
	ended := 0
	for range endRounds {
		n, whole, err := g.endRound(at)
		if ended += n; err != nil {
			return ended, fmt.Errorf("ending the flows at %v: %w", addrs, err)
		}
		if n == 0 && whole {
			break
		}
	}
	return ended, nil
}

// endRound walks the flow table once. It returns how many flows it has ended, and whether it has seen the whole table.
func (g *Gate) endRound(at map[gateServiceKey]bool) (ended int, whole bool, err error) {
	var k gateFlowKey
	var f gateFlow
	it := g.objs.Flows.Iterate()
	for it.Next(&k, &f) {
		if !at[gateServiceKey{Addr: k.Service, Port: k.ServicePort}] || f.State > gateFlowStateFLOW_ESTABLISHED {
			continue
		}
		done, err := g.endFlow(k, &f)
		if err != nil {
			return ended, false, err
		}
		if done {
			ended++
		}
	}
	return ended, it.Err() == nil, endOf(it)
}

// endFlow ends a flow, unless it has ended meanwhile. The pod gets its RST first, so that it sends nothing more.
func (g *Gate) endFlow(k gateFlowKey, f *gateFlow) (bool, error) {
	client := netip.AddrPortFrom(fromAddr(k.Client), ntohs(k.ClientPort))
	service := netip.AddrPortFrom(fromAddr(k.Service), ntohs(k.ServicePort))
	rst := tcpHeaders{flags: tcpRST | tcpACK, ttl: 64}
	if p := g.pods.at(f.Pod); p.Generation == f.Generation && p.Ifindex != 0 {
		h := rst
		h.src, h.dst = client, netip.AddrPortFrom(fromAddr(p.Addr), ntohs(p.Port))
		h.seq, h.ack = f.Seq[0], f.Seq[1]
		g.sendEnd(int(p.Ifindex), frame(p.Mac[:], p.HostMac[:], h.packet()))
	}
	gone, err := g.objs.GateEnd.Run(&ebpf.RunOptions{Context: gateEndArgs{Flow: k, Isn: f.Isn}})
	if err != nil || gone == 0 {
		return false, err
	}
	h := rst
	h.src, h.dst = service, client
	h.seq, h.ack = f.Seq[1], f.Seq[0]
	o := &f.Origin
	path := o.Path
	if path == gateFlowPathPATH_HAIRPIN {
		h.dst = netip.AddrPortFrom(g.clientOf(k), client.Port())
		if path = gateFlowPathPATH_POD; o.Ifindex == 0 {
			path = gateFlowPathPATH_STACK
		}
	}
	switch path {
	case gateFlowPathPATH_STACK:
		g.sendEnd(g.inject.outer, frame(g.dev.innerMAC, o.OurMac[:], h.packet()))
	case gateFlowPathPATH_NIC, gateFlowPathPATH_POD:
		g.sendEnd(int(o.Ifindex), frame(o.ClientMac[:], o.OurMac[:], h.packet()))
	} // otherwise the edge node's gate has a flow, too
	return true, nil
}

// sendEnd sends a RST. The device may be gone with its pod or client.
func (g *Gate) sendEnd(ifindex int, f []byte) {
	if err := g.inject.send(ifindex, f); err != nil {
		g.log.Debug("cannot send a RST", "error", err)
	}
}

// hairpinRange has the addresses that pods see as clients when they connect to themselves by their own service
// (bpf/hairpin.h).
var hairpinRange = netip.MustParsePrefix("240.0.0.0/4")

// clientOf returns the address of a flow's client.
func (g *Gate) clientOf(k gateFlowKey) netip.Addr {
	a := fromAddr(k.Client)
	if !hairpinRange.Contains(a) {
		return a
	}
	four := a.As4()
	index := binary.BigEndian.Uint32(four[:]) &^ (0xf << 28)
	if index >= g.cfg.Sizes.Pods {
		return a
	}
	if p := g.pods.at(index); p.Vip.Addr == k.Service {
		return fromAddr(p.Addr)
	}
	return a
}
