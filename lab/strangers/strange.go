// SPDX-License-Identifier: Apache-2.0

package strangers

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/lab/wired"
)

// recordTimeout is how long a client and a server may take to exchange their first datagrams.
const recordTimeout = 20 * time.Second

// payloads returns strangers' datagrams, which the controller of some daemons is sent in turn: of ten, four are HELLOs
// that name a connected node, two HELLOs that name another, two are of a session that does not exist, one is a HELLO
// that was cut off and one belongs to no protocol. They are genuine ones of another wire, with keys of its own.
func payloads(daemons int) ([][]byte, error) {
	var all [][]byte
	for i := range 50 {
		known, data, err := record(wired.NodeName(i % daemons))
		if err != nil {
			return nil, err
		}
		other, _, err := record(fmt.Sprintf("stranger-%04d", i))
		if err != nil {
			return nil, err
		}
		junk := make([]byte, 1200)
		_, _ = rand.Read(junk) // never fails (crypto/rand)
		all = append(all, known, other, data, known, junk, known, other, data, known, known[:len(known)-1])
	}
	return all, nil
}

// record returns a HELLO of a node and a datagram of its session, from a server and a client of their own that share a
// random key.
func record(node string) (hello, data []byte, err error) {
	var key wire.Key
	_, _ = rand.Read(key[:]) // never fails (crypto/rand)
	loopback := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}
	behind, err := net.ListenUDP("udp4", loopback)
	if err != nil {
		return nil, nil, err
	}
	server, err := wire.NewServer(wire.ServerConfig{Conn: behind, Key: key})
	if err != nil {
		return nil, nil, errors.Join(err, behind.Close())
	}
	defer server.Close()
	before, err := net.ListenUDP("udp4", loopback)
	if err != nil {
		return nil, nil, err
	}
	defer before.Close()
	client, err := wire.NewClient(wire.ClientConfig{
		Server: before.LocalAddr().String(), Key: key.ForNode(node), Node: node,
	})
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	if err := before.SetReadDeadline(time.Now().Add(recordTimeout)); err != nil {
		return nil, nil, err
	}
	to := behind.LocalAddr().(*net.UDPAddr).AddrPort()
	var from netip.AddrPort
	var b [2048]byte
	for data == nil {
		n, sender, err := before.ReadFromUDPAddrPort(b[:])
		if err != nil {
			return nil, nil, fmt.Errorf("record a session of node %s: %w", node, err)
		}
		onward := to
		switch {
		case sender == to:
			onward = from
		case hello == nil:
			hello, from = bytes.Clone(b[:n]), sender
		case !bytes.Equal(b[:4], hello[:4]): // another kind than a HELLO, which the client may repeat
			data = bytes.Clone(b[:n])
		}
		if _, err := before.WriteToUDPAddrPort(b[:n], onward); err != nil {
			return nil, nil, err
		}
	}
	return hello, data, nil
}

// frames returns the Ethernet frames of datagrams to a server, each from a source of its own in a range.
func frames(payloads [][]byte, from, to net.HardwareAddr, sources netip.Prefix, server netip.AddrPort) [][]byte {
	all := make([][]byte, framesInTurn)
	base := sources.Masked().Addr().As4()
	for i := range all {
		payload := payloads[i%len(payloads)]
		var r [4]byte
		_, _ = rand.Read(r[:]) // never fails (crypto/rand)
		source := netip.AddrFrom4([4]byte{base[0], base[1], r[0], r[1]})
		port := 1024 + (uint16(r[2])<<8|uint16(r[3]))%60000
		all[i] = frame(from, to, netip.AddrPortFrom(source, port), server, payload)
	}
	return all
}

// framesInTurn is the number of frames that are sent in turn.
const framesInTurn = 5000

// frame returns the frame of an IPv4 datagram without a UDP checksum, which RFC 768 allows.
func frame(from, to net.HardwareAddr, source, server netip.AddrPort, payload []byte) []byte {
	u16 := func(v int) []byte { return []byte{byte(v >> 8), byte(v)} }
	src, dst := source.Addr().As4(), server.Addr().As4()
	ip := slices.Concat([]byte{0x45, 0}, u16(28+len(payload)), []byte{0, 1, 0x40, 0, 64, 17, 0, 0}, src[:], dst[:])
	sum := 0
	for i := 0; i < len(ip); i += 2 {
		sum += int(ip[i])<<8 | int(ip[i+1])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	copy(ip[10:], u16(^sum&0xffff))
	return slices.Concat(to, from, []byte{8, 0}, ip, u16(int(source.Port())), u16(int(server.Port())),
		u16(8+len(payload)), []byte{0, 0}, payload)
}
