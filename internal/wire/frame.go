// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"

	"wangell.loutres.me/internal/base/monotime"
)

// Kinds of frames, and their sizes in bytes. A data datagram carries one or more frames.
const (
	frameAck        = 1
	frameKeepalive  = 2
	frameReliable   = 3
	frameUnreliable = 4
	frameGoodbye    = 5

	ackSize          = 1 + 3*8
	keepaliveSize    = 1 + 5*8
	reliableHeader   = 1 + 8 + 1 + 2
	unreliableHeader = 1 + 2
	goodbyeSize      = 2

	// maxSegment leaves room for an ACK in the datagram of the longest segment.
	maxSegment   = maxPayload - ackSize - reliableHeader
	maxFragments = 64
	maxMessage   = maxFragments * maxSegment
)

// Flags of a reliable frame.
const (
	flagMore = 1 << 0 // the message continues in the next segment
	flagDone = 1 << 1 // acknowledge once more when the handler has returned
)

// Reasons for a GOODBYE.
const (
	goodbyeClosed     = 1 // the sender closes the session
	goodbyeReplaced   = 2 // a newer client of the same node has connected
	goodbyeRestarting = 3 // the client is about to be restarted; its gate keeps running
)

// ack acknowledges every segment below next and each segment next+1+i whose bit i is set. The handlers of all segments
// below done have returned.
type ack struct{ next, bits, done uint64 }

func (a ack) append(b []byte) []byte {
	b = append(b, frameAck)
	b = binary.BigEndian.AppendUint64(b, a.next)
	b = binary.BigEndian.AppendUint64(b, a.bits)
	return binary.BigEndian.AppendUint64(b, a.done)
}

// tableKept is the bit of keepalive.tableVersion by which a client says, before its session is live, that it has a
// table from before and understands a step that only gives it another version.
const tableKept = 1 << 63

// keepalive keeps a session alive, measures the round trip and reports the state of the client's table.
type keepalive struct {
	sent                    monotime.Time // by the sender's clock
	echo, echoArrived       monotime.Time // sent of the last keepalive received, and its arrival by the sender's clock
	tableVersion, tableHash uint64        // state of the client's table; zero from the server
}

func (k keepalive) append(b []byte) []byte {
	b = append(b, frameKeepalive)
	b = binary.BigEndian.AppendUint64(b, uint64(k.sent))
	b = binary.BigEndian.AppendUint64(b, uint64(k.echo))
	b = binary.BigEndian.AppendUint64(b, uint64(k.echoArrived))
	b = binary.BigEndian.AppendUint64(b, k.tableVersion)
	return binary.BigEndian.AppendUint64(b, k.tableHash)
}

func appendReliable(b []byte, seq uint64, flags uint8, data []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, frameReliable), seq)
	b = binary.BigEndian.AppendUint16(append(b, flags), uint16(len(data)))
	return append(b, data...)
}

func appendUnreliable(b []byte, data []byte) []byte {
	b = binary.BigEndian.AppendUint16(append(b, frameUnreliable), uint16(len(data)))
	return append(b, data...)
}

// frame is a decoded frame. Which fields are set depends on kind.
type frame struct {
	kind      uint8
	ack       ack
	keepalive keepalive
	seq       uint64
	flags     uint8
	reason    uint8
	data      []byte // points into the datagram
}

// nextFrame reads one frame.
func nextFrame(d *decoder) (f frame, err error) {
	f.kind = d.u8()
	switch f.kind {
	case frameAck:
		f.ack = ack{next: d.u64(), bits: d.u64(), done: d.u64()}
		if d.err == nil && f.ack.done > f.ack.next {
			d.fail("more segments handled (%d) than received (%d)", f.ack.done, f.ack.next)
		}
	case frameKeepalive:
		f.keepalive = keepalive{
			sent: d.time(), echo: d.time(), echoArrived: d.time(), tableVersion: d.u64(), tableHash: d.u64(),
		}
		if err := checkTimes(f.keepalive.sent, f.keepalive.echo, f.keepalive.echoArrived); err != nil {
			d.fail("%w", err)
		}
	case frameReliable:
		f.seq, f.flags = d.u64(), d.u8()
		n := int(d.u16())
		if d.err == nil && (n == 0 || n > maxSegment || f.flags&^(flagMore|flagDone) != 0) {
			d.fail("segment of %d bytes with flags %#x", n, f.flags)
		}
		f.data = d.take(n)
	case frameUnreliable:
		n := int(d.u16())
		if d.err == nil && n == 0 {
			d.fail("empty message")
		}
		f.data = d.take(n)
	case frameGoodbye:
		f.reason = d.u8()
	default:
		d.fail("unknown frame %d", f.kind)
	}
	if d.err != nil {
		return frame{}, fmt.Errorf("wire: frame at byte %d: %w", d.at, d.err)
	}
	return f, nil
}

// parseFrames calls visit for each frame of a payload. It checks all frames first, so that a malformed datagram has no
// effect at all.
func parseFrames(payload []byte, visit func(*frame)) error {
	if len(payload) == 0 {
		return fmt.Errorf("wire: datagram without a frame")
	}
	for d := (decoder{b: payload}); d.left() > 0; {
		if _, err := nextFrame(&d); err != nil {
			return err
		}
	}
	for d := (decoder{b: payload}); d.left() > 0; {
		f, _ := nextFrame(&d)
		visit(&f)
	}
	return nil
}
