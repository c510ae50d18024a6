// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/runtime/podnet"
)

// Codes of "destination unreachable" (RFC 792, RFC 1812 section 5.2.7.1).
const (
	hostUnreachable = 1
	portUnreachable = 3
	adminProhibited = 13
)

// gateDevice is the device to which service addresses are routed.
const gateDevice = "wangell0"

// The sets of the table.
const (
	setServices = "services" // the addresses of existing services
	setSwitched = "switched" // the devices whose forwarding this package has switched on
)

// ruleset is the content of the table. In the notation of nft(8), with P as the prefix of pods' devices:
//
//	chain postrouting { type nat hook postrouting priority srcnat
//	  iifname "P*" oifname != "P*" oifname != "wangell0" masquerade
//	  oifname "wangell0" ip saddr 127.0.0.0/8 masquerade }
//	chain prerouting { type nat hook prerouting priority dstnat
//	  fib daddr type local [ip daddr HOST] tcp dport PORT dnat to ADDRESS:PORT }   for each published service
//	chain local { type nat hook output priority dstnat
//	  the same, and those at loopback addresses }
//	chain lost { type filter hook prerouting priority filter
//	  iifname "P*" ip daddr PODS ip protocol udp fib daddr oif missing reject with icmp port-unreachable }
//	chain forward { type filter hook forward priority filter
//	  iifname "P*" fib saddr . iif oif missing drop
//	  oifname "wangell0" goto gate
//	  iifname "P*" oifname "P*" reject with icmp admin-prohibited
//	  iifname "P*" ip daddr GATEWAY reject with icmp admin-prohibited
//	  iifname "P*" accept
//	  ct state established,related accept
//	  oifname "P*" reject with icmp admin-prohibited
//	  iifname @switched drop }
//	chain output { type filter hook output priority filter
//	  oifname "wangell0" goto gate }
//	chain gate {
//	  ip daddr @services ip protocol { tcp, icmp } accept
//	  ip daddr SERVICES ip protocol udp reject with icmp port-unreachable
//	  ip daddr SERVICES reject with icmp host-unreachable }
//
// UDP sockets learn of "port unreachable" and "prohibited", and not of "host unreachable" (udp(7), IP_RECVERR). The
// route for pod addresses that lead nowhere answers with the latter.
//
// Services at loopback addresses are for the machine alone, and have no rule in prerouting: a neighbor can send packets
// to 127.0.0.1 as well, and these would be redirected before the kernel drops them for their address.
//
// Packets from pods to existing services hardly ever get that far, because the gate handles them at the pods'
// devices.
type ruleset struct {
	cfg       Config
	services  []netip.Addr
	switched  []string
	published map[netip.AddrPort]netip.AddrPort
}

// table is the table of an instance.
func (c Config) table() *nftables.Table { return tableOf(c.DevicePrefix) }

func tableOf(prefix string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "wangell-" + prefix}
}

// tables are the names of the table, in this version and in an earlier one.
func (c Config) tables() []*nftables.Table {
	if c.FormerPrefix == "" {
		return []*nftables.Table{c.table()}
	}
	return []*nftables.Table{c.table(), tableOf(c.FormerPrefix)}
}

// drop removes the tables in the next step of a connection.
func (c Config) drop(conn *nftables.Conn) {
	for _, t := range c.tables() {
		conn.DelTable(conn.AddTable(t)) // it may not exist before
	}
}

// apply replaces the table in one step.
func (r ruleset) apply(conn *nftables.Conn) error {
	r.cfg.drop(conn)
	t := conn.AddTable(r.cfg.table())
	services := &nftables.Set{Table: t, Name: setServices, KeyType: nftables.TypeIPAddr}
	if err := conn.AddSet(services, addrElements(r.services)); err != nil {
		return fmt.Errorf("set of service addresses: %w", err)
	}
	switched := &nftables.Set{Table: t, Name: setSwitched, KeyType: nftables.TypeIFName}
	if err := conn.AddSet(switched, nameElements(r.switched)); err != nil {
		return fmt.Errorf("set of devices: %w", err)
	}
	in := func(c *nftables.Chain) func(...[]expr.Any) {
		return func(parts ...[]expr.Any) {
			conn.AddRule(&nftables.Rule{Table: t, Chain: c, Exprs: slices.Concat(parts...)})
		}
	}
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook,
		priority *nftables.ChainPriority) func(...[]expr.Any) {
		return in(conn.AddChain(&nftables.Chain{Table: t, Name: name, Type: kind, Hooknum: hook, Priority: priority}))
	}
	pods := r.cfg.DevicePrefix
	add := chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	add(name(expr.MetaKeyIIFNAME, expr.CmpOpEq, pods), name(expr.MetaKeyOIFNAME, expr.CmpOpNeq, pods),
		name(expr.MetaKeyOIFNAME, expr.CmpOpNeq, gateDevice+"\x00"), masquerade())

	onGate := name(expr.MetaKeyOIFNAME, expr.CmpOpEq, gateDevice+"\x00")
	add(onGate, inRange(offsetSource, loopback), masquerade())

	incoming := chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	local := chain("local", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	for _, at := range slices.SortedFunc(maps.Keys(r.published), netip.AddrPort.Compare) {
		if !at.Addr().IsLoopback() {
			incoming(toMachine(at), leadTo(r.published[at]))
		}
		local(toMachine(at), leadTo(r.published[at]))
	}

	fromPod := name(expr.MetaKeyIIFNAME, expr.CmpOpEq, pods)
	toPod := name(expr.MetaKeyOIFNAME, expr.CmpOpEq, pods)
	add = chain("lost", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityFilter)
	add(fromPod, inRange(offsetDestination, r.cfg.Pods), ofProtocol(unix.IPPROTO_UDP), lost(), reject(portUnreachable))

	toGate := conn.AddChain(&nftables.Chain{Table: t, Name: "gate"})
	add = in(toGate)
	for _, protocol := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_ICMP} {
		add(inAddresses(offsetDestination, services), ofProtocol(protocol), verdict(expr.VerdictAccept))
	}
	add(inRange(offsetDestination, r.cfg.Services), ofProtocol(unix.IPPROTO_UDP), reject(portUnreachable))
	add(inRange(offsetDestination, r.cfg.Services), reject(hostUnreachable))
	goesToGate := append(onGate,
		&expr.Verdict{Kind: expr.VerdictGoto, Chain: toGate.Name})

	add = chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	add(fromPod, forged(), verdict(expr.VerdictDrop))
	add(goesToGate)
	add(fromPod, toPod, reject(adminProhibited))
	add(fromPod, inRange(offsetDestination, gateway), reject(adminProhibited))
	add(fromPod, verdict(expr.VerdictAccept))
	add(known(), verdict(expr.VerdictAccept))
	add(toPod, reject(adminProhibited))
	add(inNames(expr.MetaKeyIIFNAME, switched), verdict(expr.VerdictDrop))

	add = chain("output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
	add(goesToGate)
	return conn.Flush()
}

func addrElements(addrs []netip.Addr) (out []nftables.SetElement) {
	for _, a := range addrs {
		out = append(out, nftables.SetElement{Key: a.AsSlice()})
	}
	return out
}

func nameElements(names []string) (out []nftables.SetElement) {
	for _, n := range names {
		key := make([]byte, unix.IFNAMSIZ)
		copy(key, n)
		out = append(out, nftables.SetElement{Key: key})
	}
	return out
}

// Offsets in the IPv4 header (RFC 791).
const (
	offsetSource      = 12
	offsetDestination = 16
)

func address(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

// inRange matches packets with an address in a range.
func inRange(offset uint32, p netip.Prefix) []expr.Any {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	return []expr.Any{
		address(offset),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// inAddresses matches packets with an address in a set.
func inAddresses(offset uint32, s *nftables.Set) []expr.Any {
	return []expr.Any{address(offset), &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}}
}

// ofProtocol matches packets of a protocol above IP.
func ofProtocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}}}
}

// name matches packets by the first bytes of the name of a device.
func name(key expr.MetaKey, op expr.CmpOp, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: []byte(prefix)}}
}

// inNames matches packets by the name of a device.
func inNames(key expr.MetaKey, s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}}
}

// forged matches packets whose source is not routed to the device that they came in on.
func forged() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
	}
}

// gateway is the address to which pods send, and which nobody has.
var gateway = netip.PrefixFrom(podnet.Gateway, 32)

// lost matches packets to addresses to which no device leads.
func lost() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: make([]byte, 4)},
	}
}

// known matches packets of connections that exist, and ICMP errors about them.
func known() []expr.Any {
	states := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	return []expr.Any{
		&expr.Ct{Register: 1, Key: expr.CtKeySTATE},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: states, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// loopback is the range of loopback addresses (RFC 1122, section 3.2.1.3).
var loopback = netip.MustParsePrefix("127.0.0.0/8")

// toMachine matches packets to a TCP port of an address of the machine; of any, if that is 0.0.0.0.
func toMachine(at netip.AddrPort) []expr.Any {
	var to []expr.Any
	if !at.Addr().IsUnspecified() {
		to = inRange(offsetDestination, netip.PrefixFrom(at.Addr(), 32))
	}
	return slices.Concat(to, []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)},
	}, ofProtocol(unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, at.Port())},
	})
}

// leadTo sends packets to another address and port.
func leadTo(a netip.AddrPort) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: a.Addr().AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, a.Port())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func reject(code uint8) []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}
