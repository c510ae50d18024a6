// SPDX-License-Identifier: Apache-2.0

// Package forge sends floods of forged SYNs inside network namespaces, for tests and experiments. The kernel makes the
// frames: an XDP program is run in live-frame mode (BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18), gives each frame another
// source and sends it, so that even a small machine floods faster than any program could.
package forge

import (
	"context"
	"errors"
	"fmt"
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

// Open prepares a flood. The caller closes it.
func Open(cfg Config) (_ *SYNs, err error) {
	if cfg.Batch == 0 {
		cfg.Batch = defaultBatch
	}
	if len(cfg.Services) == 0 {
		return nil, fmt.Errorf("forge SYNs on %s: name a service", cfg.Device)
	}
	dev, err := net.InterfaceByName(cfg.Device)
	if err != nil {
		return nil, fmt.Errorf("forge SYNs: device %s: %w", cfg.Device, err)
	}
	s := &SYNs{cfg: cfg, device: uint32(dev.Index)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, service := range cfg.Services {
		if !cfg.Sources.IsValid() || !cfg.Sources.Addr().Is4() || !service.Addr().Is4() || len(cfg.From) != 6 ||
			len(cfg.To) != 6 {
			return nil, fmt.Errorf("forge SYNs from %v to %v: want IPv4 and two MAC addresses", cfg.Sources, service)
		}
	}
	if s.destinations, err = loadDestinations(cfg.Services); err != nil {
		return nil, fmt.Errorf("forge SYNs on %s: %w", cfg.Device, err)
	}
	s.frame = SYN(cfg.From, cfg.To, cfg.Sources.Masked().Addr(), cfg.Services[0])
	if s.program, err = load(s.frame, &cfg, s.device, s.destinations); err != nil {
		return nil, fmt.Errorf("forge SYNs on %s: load the program that forges: %w", cfg.Device, err)
	}
	return s, nil
}

// Close frees the program and its map.
func (s *SYNs) Close() error {
	return errors.Join(s.program.Close(), s.destinations.Close())
}

// Send sends n SYNs, at most rate a second (0: as fast as the kernel can), until the context ends. It returns how many
// it handed to the device; the device may have dropped some.
func (s *SYNs) Send(ctx context.Context, n, rate int) (sent int, err error) {
	p := &pace{left: n, batch: s.cfg.Batch, rate: rate}
	err = inThreads(min(senders(), (n-1)/s.cfg.Batch+1), func() error {
		for {
			batch := p.next(ctx)
			if batch == 0 {
				return nil
			}
			err := s.run(batch)
			if err != nil {
				p.stop()
				return fmt.Errorf("forge SYNs on %s: %w", s.cfg.Device, err)
			}
			p.done(batch)
		}
	})
	return p.sent, err
}
