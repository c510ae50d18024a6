// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"time"

	"github.com/vishvananda/netlink/nl"
)

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
	infoEnough      = infoReceived + 8
)

// States of net/tcp_states.h.
const (
	tcpEstablished = 1
	tcpSynReceived = 3
	tcpCloseWait   = 8
)

// talk is the state of a socket of a pod.
type talk struct {
	state       byte
	port        uint16 // the pod's own
	queued      uint32 // bytes that the program has not read; of a listening socket, connections that it has not accepted
	received    uint64 // bytes
	receivedAgo time.Duration
	segmentAgo  time.Duration // since its last segment, which may have been a FIN
	answeredAgo time.Duration
}

// owesAnswer reports whether the programs of the network namespace owe their peers something: to accept a connection,
// to read what came within unread, or to answer what they read within recent.
func (d *sockDiag) owesAnswer(recent, unread time.Duration) (bool, error) {
	found, err := d.list(1<<tcpListen|1<<tcpEstablished|1<<tcpSynReceived|1<<tcpCloseWait, 0, 1<<(diagInfo-1))
	if err != nil {
		return false, err
	}
	var all []talk
	for _, m := range found {
		if t, ok := talkOf(m); ok {
			all = append(all, t)
		}
	}
	return owed(all, recent, unread), nil
}

// talkOf parses an inet_diag_msg with its attributes.
func talkOf(m []byte) (t talk, ok bool) {
	if len(m) < diagMsgSize {
		return t, false
	}
	t.state, t.port = m[diagMsgState], binary.BigEndian.Uint16(m[diagMsgPort:])
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
		t.received = binary.NativeEndian.Uint64(a.Value[infoReceived:])
	}
	return t, true
}

// owed reports whether listening programs owe something. Connections in which the pod is the client do not count:
// there, the pod waits. Nor does what came longer ago than unread: a program that had not read it before it was frozen
// may never do so.
func owed(all []talk, recent, unread time.Duration) bool {
	serves := map[uint16]bool{}
	for _, t := range all {
		if t.state == tcpListen {
			serves[t.port] = true
			if t.queued > 0 {
				return true
			}
		}
	}
	for _, t := range all {
		switch {
		case t.state == tcpListen || !serves[t.port]:
		case t.state == tcpSynReceived, t.queued > 0 && min(t.receivedAgo, t.segmentAgo) <= unread:
			return true
		case t.received > 0 && t.receivedAgo < t.answeredAgo && t.receivedAgo < recent:
			return true
		}
	}
	return false
}
