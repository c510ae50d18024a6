// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
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
	udp      *net.UDPConn
	conn     *ipv4.PacketConn
	messages []ipv4.Message
	progress *progress
	idle     time.Duration // the longest wait for datagrams before progress is reported
	began    time.Time     // the last receiving
	behind   bool          // more may have arrived before then than what was received
}

// newBatchReader returns a reader of at most size datagrams at a time. It reports progress after each call of read, and
// at least once in idle.
func newBatchReader(conn *net.UDPConn, size int, p *progress, idle time.Duration) *batchReader {
	r := &batchReader{
		udp: conn, conn: ipv4.NewPacketConn(conn), messages: make([]ipv4.Message, size),
		progress: p, idle: idle, began: time.Now(), behind: true,
	}
	_ = conn.SetReadDeadline(r.began.Add(idle))
	for i := range r.messages {
		r.messages[i].Buffers = [][]byte{make([]byte, maxDatagram+1)}
	}
	return r
}

// read waits for a datagram, and returns how many there are. The caller has handled those of the last call.
func (r *batchReader) read() (n int, err error) {
	for {
		if !r.behind {
			r.progress.reached(r.began)
		}
		r.began = time.Now()
		n, err = r.conn.ReadBatch(r.messages, 0)
		r.behind = err != nil || n == len(r.messages)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		// A deadline that has passed hides datagrams that have arrived.
		r.began = time.Now()
		r.behind = !r.empty()
		if err := r.udp.SetReadDeadline(r.began.Add(r.idle)); err != nil {
			return 0, err
		}
	}
}

// empty reports whether no datagram waits at the socket.
func (r *batchReader) empty() bool {
	size := 0
	err := withSocket(r.udp, func(fd int) (err error) {
		size, err = unix.IoctlGetInt(fd, unix.SIOCINQ)
		return err
	})
	return err == nil && size == 0
}

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
