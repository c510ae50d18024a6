// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// probeTimeout limits the wait for the answer to a probe. It is short because pod and prober share a kernel.
const probeTimeout = time.Millisecond

// prober sends SYNs to a pod from within the pod's network namespace. A listening socket answers with a SYN-ACK. The
// kernel answers that with an RST, because it belongs to no socket, so the pod's program never sees a connection.
type prober struct {
	fd   int
	addr netip.AddrPort
}

// newProber opens a prober. The calling thread must be in the pod's network namespace.
func newProber(addr netip.AddrPort) (*prober, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return nil, fmt.Errorf("opening a raw socket: %w: the daemon needs CAP_NET_RAW", err)
	}
	tv := unix.NsecToTimeval(probeTimeout.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4()}),
	)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up a raw socket: %w", err)
	}
	return &prober{fd: fd, addr: addr}, nil
}

func (p *prober) close() { unix.Close(p.fd) }

// answers sends one SYN and reports whether a SYN-ACK comes back.
func (p *prober) answers() bool {
	// The source port is outside the usual ephemeral range.
	port := uint16(61000 + rand.IntN(4000))
	seq := rand.Uint32()
	to := p.addr.Addr().As4()
	if err := unix.Sendto(p.fd, probeSYN(to, port, p.addr.Port(), seq), 0, &unix.SockaddrInet4{Addr: to}); err != nil {
		return false
	}
	buf := make([]byte, 128)
	for deadline := time.Now().Add(probeTimeout); time.Now().Before(deadline); {
		n, err := unix.Read(p.fd, buf)
		if err != nil {
			return false
		}
		if synack, ours := probeAnswer(buf[:n], p.addr.Port(), port, seq); ours {
			return synack
		}
	}
	return false
}

// probeSYN returns a TCP SYN whose source and destination address are addr.
func probeSYN(addr [4]byte, from, to uint16, seq uint32) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b[0:], from)
	binary.BigEndian.PutUint16(b[2:], to)
	binary.BigEndian.PutUint32(b[4:], seq)
	b[12] = 5 << 4
	b[13] = 0x02 // SYN
	binary.BigEndian.PutUint16(b[14:], 1024)
	var sum uint32
	for i := 0; i < 4; i += 2 {
		sum += 2 * uint32(binary.BigEndian.Uint16(addr[i:]))
	}
	sum += unix.IPPROTO_TCP + uint32(len(b))
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}

// probeAnswer reports whether an IPv4 packet answers the probe with sequence number seq, and whether it is a SYN-ACK.
func probeAnswer(packet []byte, from, to uint16, seq uint32) (synack, ours bool) {
	if len(packet) < 20 {
		return false, false
	}
	ihl := int(packet[0]&0xf) * 4
	if ihl < 20 || len(packet) < ihl+20 {
		return false, false
	}
	tcp := packet[ihl:]
	if binary.BigEndian.Uint16(tcp) != from || binary.BigEndian.Uint16(tcp[2:]) != to ||
		binary.BigEndian.Uint32(tcp[8:]) != seq+1 {
		return false, false
	}
	return tcp[13]&0x17 == 0x12, true // of ACK, RST, SYN and FIN, ACK and SYN are set
}
