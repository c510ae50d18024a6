// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net"
	"net/netip"
	"sync"

	"golang.org/x/net/ipv4"
)

const (
	// serverBatch and clientBatch are the most datagrams that each end receives with one system call. A client has a
	// single session, whose window they cover in a few calls.
	serverBatch = 64
	clientBatch = 16

	// sendBatch is the most datagrams that a session sends with one system call.
	sendBatch = 32
)

// batchReader receives several datagrams with one system call. golang.org/x/net/ipv4 reads the messages of IPv6 sockets
// as well.
type batchReader struct {
	conn     *ipv4.PacketConn
	messages []ipv4.Message
}

func newBatchReader(conn *net.UDPConn, size int) *batchReader {
	r := &batchReader{conn: ipv4.NewPacketConn(conn), messages: make([]ipv4.Message, size)}
	for i := range r.messages {
		r.messages[i].Buffers = [][]byte{make([]byte, maxDatagram+1)}
	}
	return r
}

// read waits for a datagram, and returns how many there are.
func (r *batchReader) read() (n int, err error) { return r.conn.ReadBatch(r.messages, 0) }

// datagram returns the i-th datagram of the last read. The caller may overwrite it, until the next read.
func (r *batchReader) datagram(i int) []byte { return r.messages[i].Buffers[0][:r.messages[i].N] }

// from returns the sender of the i-th datagram of the last read.
func (r *batchReader) from(i int) netip.AddrPort { return r.messages[i].Addr.(*net.UDPAddr).AddrPort() }

// batchWriter sends several datagrams to one address with one system call.
type batchWriter struct {
	udp  *net.UDPConn
	conn *ipv4.PacketConn
}

func newBatchWriter(conn *net.UDPConn) *batchWriter {
	return &batchWriter{udp: conn, conn: ipv4.NewPacketConn(conn)}
}

// envelopes are the messages of batchWriter.write while they are being sent.
var envelopes = sync.Pool{New: func() any {
	m := make([]ipv4.Message, sendBatch)
	for i := range m {
		m[i].Buffers = make([][]byte, 1)
	}
	return &m
}}

// write sends datagrams, at most sendBatch, to an address, or to that of a connected socket if to is nil. An error is
// treated like a loss on the way.
func (w *batchWriter) write(datagrams [][]byte, to *net.UDPAddr) {
	if len(datagrams) == 1 {
		if to == nil {
			_, _ = w.udp.Write(datagrams[0])
		} else {
			_, _ = w.udp.WriteToUDPAddrPort(datagrams[0], to.AddrPort())
		}
		return
	}
	pooled := envelopes.Get().(*[]ipv4.Message)
	defer envelopes.Put(pooled)
	messages := (*pooled)[:len(datagrams)]
	for i, d := range datagrams {
		messages[i].Buffers[0] = d
		if messages[i].Addr = nil; to != nil {
			messages[i].Addr = to
		}
	}
	for len(messages) > 0 {
		n, err := w.conn.WriteBatch(messages, 0)
		if err != nil {
			n = 1 // the error is of the first one
		}
		messages = messages[n:]
	}
}

// sendBuffer holds the sealed datagrams of a session until they are sent together.
type sendBuffer struct {
	list [][]byte
	room [sendBatch][maxDatagram]byte
}

var sendBuffers = sync.Pool{New: func() any { return &sendBuffer{list: make([][]byte, 0, sendBatch)} }}

// buf returns room for the next datagram.
func (o *sendBuffer) buf() []byte { return o.room[len(o.list)][:] }
