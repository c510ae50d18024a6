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
)

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
