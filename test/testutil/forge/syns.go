// SPDX-License-Identifier: Apache-2.0

package forge

import (
	"errors"
	"net"
	"net/netip"

	"github.com/cilium/ebpf"
)

// Config describes a flood.
type Config struct {
	// Device is the veth that sends the frames, in the network namespace of the thread that calls Open and Send. Frames
	// vanish unless its peer has a native XDP program, or GRO, and beyond what a queue of the peer takes: 256 frames.
	// Each processor that sends uses a queue of its own if the peer has as many (SpreadQueues).
	Device string
	// Arrive makes the frames arrive at Device, after its XDP program, instead of leaving by it. None is lost.
	Arrive bool
	// From and To are the source and destination MAC address of the frames.
	From, To net.HardwareAddr
	// Sources is the IPv4 range of the clients' addresses. At most its last 16 bits vary.
	Sources netip.Prefix
	// Services are the addresses that the SYNs are for, each for one of them at random.
	Services []netip.AddrPort
	// Batch is how many frames the kernel sends before the rate and the end of the context are looked at. Zero is
	// defaultBatch.
	Batch int
}

// SYNs sends forged SYNs. Their source address, source port and sequence number are random, their checksums right.
//
// One program makes them for all services. For each program that begins to run or ends, the kernel updates the code
// that calls XDP programs, under a lock and with a grace period of RCU (bpf_dispatcher_change_prog), so that a flood by
// many programs would get no further than one batch in 30 ms.
type SYNs struct {
	cfg          Config
	device       uint32
	program      *ebpf.Program
	destinations *ebpf.Map
	frame        []byte
}

// Close frees the program and its map.
func (s *SYNs) Close() error {
	return errors.Join(s.program.Close(), s.destinations.Close())
}
