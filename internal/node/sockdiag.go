// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/wire"
)

// sockDiag looks up sockets of one network namespace (sock_diag(7)).
type sockDiag struct{ socket *nl.SocketHandle }

func newSockDiag(ns netns.NsHandle) (*sockDiag, error) {
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	// The kernel answers while it handles the request; the timeout guards against bugs only.
	if err := s.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		s.Close()
		return nil, err
	}
	return &sockDiag{&nl.SocketHandle{Socket: s}}, nil
}

func (d *sockDiag) close() { d.socket.Close() }

// Sizes and offsets of struct inet_diag_req_v2 and struct inet_diag_msg (linux/inet_diag.h). Ports and addresses are
// big endian, the rest is in host order.
const (
	diagReqSize   = 56
	diagReqStates = 4
	diagReqPort   = 8  // idiag_sport
	diagReqAddr   = 12 // idiag_src
	diagReqCookie = 48
	diagMsgState  = 1
	diagMsgLocal  = 8  // id.idiag_src, 16 bytes
	diagMsgPeer   = 24 // id.idiag_dst, 16 bytes
	// diagMsgPeerPort is the offset of id.idiag_dport.
	diagMsgPeerPort = 6
	tcpListen       = 10 // TCP_LISTEN (net/tcp_states.h)
)

// hasListener reports whether a SYN to an IPv4 address would find a listening socket now: one bound to that address, to
// the wildcard address, or a dual-stack IPv6 socket. It makes the kernel look up this one socket. Listing sockets, even
// with a filter, would walk the machine's whole table of connections, which takes milliseconds if the table is large.
func (d *sockDiag) hasListener(addr netip.AddrPort) (bool, error) {
	q := make([]byte, diagReqSize)
	q[0], q[1] = unix.AF_INET, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(q[diagReqStates:], 1<<tcpListen)
	binary.BigEndian.PutUint16(q[diagReqPort:], addr.Port())
	a := addr.Addr().As4()
	copy(q[diagReqAddr:], a[:])
	for i := range 8 {
		q[diagReqCookie+i] = 0xff // INET_DIAG_NOCOOKIE: any socket
	}
	found, err := d.request(nl.SOCK_DIAG_BY_FAMILY, q, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && len(found) > 0 && len(found[0]) > diagMsgState && found[0][diagMsgState] == tcpListen, err
}

// openSockDiag is newSockDiag for the network namespace at a path.
func openSockDiag(path string) (*sockDiag, error) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("opening its network namespace %s: %w", path, err)
	}
	defer ns.Close()
	d, err := newSockDiag(ns)
	if err != nil {
		return nil, fmt.Errorf("opening a sock_diag socket in its network namespace %s: %w", path, err)
	}
	return d, nil
}

// States of connections that are not over (net/tcp_states.h): ESTABLISHED, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT.
const openStates = 1<<1 | 1<<4 | 1<<5 | 1<<8

// openPeers returns the other ends of all open connections with a local port.
func (d *sockDiag) openPeers(port uint16) (peers []netip.AddrPort, err error) {
	found, err := d.list(openStates, port, 0)
	for _, m := range found {
		peers = append(peers, peerOf(m))
	}
	return peers, err
}

// Size and offsets of struct inet_diag_req (linux/inet_diag.h), and the type of its messages.
const (
	tcpDiagGetSock  = 18 // TCPDIAG_GETSOCK
	oldDiagSize     = 60
	oldDiagExt      = 3
	oldDiagPort     = 4
	oldDiagStates   = 52
	oldDiagFamilies = unix.AF_UNSPEC
)

// list returns the inet_diag_msg of each socket in one of some states, with a local port unless that is 0, and with the
// attributes of ext. For that, the kernel walks the connections of all network namespaces, which takes milliseconds if
// its table is large. The older of its two requests covers both address families at once.
func (d *sockDiag) list(states uint32, port uint16, ext byte) ([][]byte, error) {
	q := make([]byte, oldDiagSize)
	q[0], q[oldDiagExt] = oldDiagFamilies, ext
	binary.NativeEndian.PutUint32(q[oldDiagStates:], states)
	binary.BigEndian.PutUint16(q[oldDiagPort:], port)
	return d.request(tcpDiagGetSock, q, unix.NLM_F_DUMP)
}

// request sends a request of a type and returns the answers.
func (d *sockDiag) request(of int, q []byte, flags int) ([][]byte, error) {
	req := nl.NewNetlinkRequest(of, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: d.socket}
	req.AddRawData(q)
	return req.Execute(unix.NETLINK_INET_DIAG, uint16(of))
}

// Of the name server of a pod on one machine, whose socket is in the pod's network: internal/machine/poddns.
var nameServer = netip.MustParseAddrPort("127.0.0.11:53")

// listening returns the addresses on which sockets of the network namespace listen, sorted, at most wire.MaxSockets;
// unspecified ones for all interfaces. It does not walk the table of connections.
func (d *sockDiag) listening() ([]netip.AddrPort, error) {
	found, err := d.list(1<<tcpListen, 0, 0)
	if err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	for _, m := range found {
		if a := localOf(m); a.IsValid() && a.Port() != 0 && a != nameServer {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	all = slices.Compact(all)
	return all[:min(len(all), wire.MaxSockets)], nil
}

// localOf returns the address and port of a socket itself; the zero value if the message is too short.
func localOf(message []byte) netip.AddrPort { return endOf(message, diagMsgLocal, diagMsgPort) }

// peerOf returns the other end of a connection; the zero value if the message is too short.
func peerOf(message []byte) netip.AddrPort { return endOf(message, diagMsgPeer, diagMsgPeerPort) }

// endOf returns the end of a socket whose address and port are at these offsets of a message.
func endOf(message []byte, addr, port int) netip.AddrPort {
	if len(message) < addr+16 {
		return netip.AddrPort{}
	}
	b := message[addr : addr+16]
	if message[0] == unix.AF_INET {
		b = b[:4]
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(message[port:]))
}

// Offsets in struct inet_diag_msg and struct tcp_info (linux/inet_diag.h, linux/tcp.h).
const (
	diagMsgPort     = 4 // id.idiag_sport
	diagMsgRqueue   = 56
	diagMsgSize     = 72
	diagInfo        = 2 // INET_DIAG_INFO
	infoSentAgo     = 44
	infoReceivedAgo = 52
	infoSegmentAgo  = 56 // tcpi_last_ack_recv
	infoReceived    = 128
	infoSegments    = 156 // tcpi_data_segs_out
	infoEnough      = infoSegments + 4
)

// States of net/tcp_states.h.
const (
	tcpEstablished = 1
	tcpSynReceived = 3
	tcpCloseWait   = 8
)

// socketState is the state of a socket of a pod.
type socketState struct {
	state       byte
	port        uint16 // the pod's own
	peer        netip.Addr
	queued      uint32 // bytes that the program has not read; of a listening socket, connections that it has not accepted
	received    uint64 // bytes
	answers     uint32 // segments with data that the pod has sent
	receivedAgo time.Duration
	segmentAgo  time.Duration // since its last segment, which may have been a FIN
	answeredAgo time.Duration
}

// owesAnswer reports whether a program of the network namespace has work to do for a peer: accept a connection, read
// data that arrived within unread, or answer data that it read within recent.
func (d *sockDiag) owesAnswer(recent, unread time.Duration) (bool, error) {
	all, err := d.states()
	return err == nil && owed(all, recent, unread), err
}

// states returns the sockets of the network namespace that listen, or on which a peer may wait for an answer.
func (d *sockDiag) states() (all []socketState, err error) {
	found, err := d.list(1<<tcpListen|1<<tcpEstablished|1<<tcpSynReceived|1<<tcpCloseWait, 0, 1<<(diagInfo-1))
	for _, m := range found {
		if t, ok := parseSocket(m); ok {
			all = append(all, t)
		}
	}
	return all, err
}

// asked reports whether the peer was the last to send data. The kernel counts the time since the last answer from the
// handshake on if there was none.
func (t *socketState) asked() bool {
	return t.received > 0 && (t.answers == 0 || t.receivedAgo < t.answeredAgo)
}

// parseSocket parses an inet_diag_msg with its attributes.
func parseSocket(m []byte) (t socketState, ok bool) {
	if len(m) < diagMsgSize {
		return t, false
	}
	t.state, t.port = m[diagMsgState], binary.BigEndian.Uint16(m[diagMsgPort:])
	t.peer = peerOf(m).Addr()
	t.queued = binary.NativeEndian.Uint32(m[diagMsgRqueue:])
	attrs, err := nl.ParseRouteAttr(m[diagMsgSize:])
	if err != nil {
		return t, false
	}
	for _, a := range attrs {
		if a.Attr.Type != diagInfo || len(a.Value) < infoEnough {
			continue
		}
		ms := func(at int) time.Duration {
			return time.Duration(binary.NativeEndian.Uint32(a.Value[at:])) * time.Millisecond
		}
		t.answeredAgo, t.receivedAgo, t.segmentAgo = ms(infoSentAgo), ms(infoReceivedAgo), ms(infoSegmentAgo)
		t.answers = binary.NativeEndian.Uint32(a.Value[infoSegments:])
		t.received = binary.NativeEndian.Uint64(a.Value[infoReceived:])
	}
	return t, true
}

// owed reports whether a listening program has work to do for a peer. Connections in which the pod is the client do not
// count: there, the pod waits. Nor does data that arrived longer ago than unread: a program that had not read it before
// it was frozen may never do so.
func owed(all []socketState, recent, unread time.Duration) bool {
	serves := servedPorts(all)
	for _, t := range all {
		switch {
		case t.state == tcpListen && t.queued > 0:
			return true
		case t.state == tcpListen || !serves[t.port]:
		case t.state == tcpSynReceived, t.queued > 0 && min(t.receivedAgo, t.segmentAgo) <= unread:
			return true
		case t.asked() && t.receivedAgo < recent:
			return true
		}
	}
	return false
}

// servedPorts returns the ports on which sockets listen.
func servedPorts(all []socketState) map[uint16]bool {
	serves := map[uint16]bool{}
	for _, t := range all {
		if t.state == tcpListen {
			serves[t.port] = true
		}
	}
	return serves
}
