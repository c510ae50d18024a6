// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/runtime/podnet"
)

// behalfCapability allows Envoy to set IP_TRANSPARENT (ip(7)).
const behalfCapability = unix.CAP_NET_RAW

// allowBehalf prepares a network for an Envoy that connects to pods from its clients' addresses. The error says what
// this machine lacks for it.
func allowBehalf(n podnet.Network) error {
	if err := mayPassOn(behalfCapability); err != nil {
		return err
	}
	if err := n.ReceiveAll(); err != nil {
		return fmt.Errorf("routes of Envoy's network: %w", err)
	}
	return nil
}

// noteOpaque reports why pods do not see the addresses of clients; empty if they do.
func (p *proxy) noteOpaque(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opaque = why
	p.hidden(why)
}

// mayPassOn reports whether this process may give a capability to its children.
func mayPassOn(capability uint) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("capabilities of this process: %w", err)
	}
	if data[capability/32].Permitted&(1<<(capability%32)) == 0 {
		return errors.New("this process lacks CAP_NET_RAW, which Envoy needs: run it with that capability")
	}
	return nil
}
