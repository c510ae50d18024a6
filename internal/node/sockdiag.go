// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// sockDiag asks one network namespace for its sockets (sock_diag(7)).
type sockDiag struct{ socket *nl.SocketHandle }

func newSockDiag(ns netns.NsHandle) (*sockDiag, error) {
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, err
	}
	// The kernel answers within the request.
	if err := s.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		s.Close()
		return nil, err
	}
	return &sockDiag{&nl.SocketHandle{Socket: s}}, nil
}

func (d *sockDiag) close() { d.socket.Close() }

// Layout of struct inet_diag_req_v2 and struct inet_diag_msg (linux/inet_diag.h). Ports and addresses are big-endian.
const (
	diagReqSize   = 56
	diagReqStates = 4
	diagReqPort   = 8  // idiag_sport
	diagReqAddr   = 12 // idiag_src
	diagReqCookie = 48
	diagMsgState  = 1
	tcpListen     = 10 // TCP_LISTEN (net/tcp_states.h)
)

// listens tells whether a SYN to an IPv4 address would find a listening socket now, be it one of that address, of all, or one
// of IPv6 that takes IPv4, too. It has the kernel look up this one socket. A list of all sockets, filtered or not, has it go
// through the table of connections of the whole machine, which takes milliseconds where that is large.
func (d *sockDiag) listens(addr netip.AddrPort) (bool, error) {
	q := make([]byte, diagReqSize)
	q[0], q[1] = unix.AF_INET, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(q[diagReqStates:], 1<<tcpListen)
	binary.BigEndian.PutUint16(q[diagReqPort:], addr.Port())
	a := addr.Addr().As4()
	copy(q[diagReqAddr:], a[:])
	for i := range 8 {
		q[diagReqCookie+i] = 0xff // any
	}
	req := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, 0)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: d.socket}
	req.AddRawData(q)
	found, err := req.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && len(found) > 0 && len(found[0]) > diagMsgState && found[0][diagMsgState] == tcpListen, err
}
