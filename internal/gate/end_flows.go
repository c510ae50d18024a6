// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
)

// endRounds bounds how many times EndFlows walks the flow table: a walk through a changing table may miss flows.
const endRounds = 4

// EndFlows ends the open flows at service addresses: each gate sends a RST to those of the two sides that are on its
// node, or reach the cluster there. It returns how many flows of this gate it has ended.
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
