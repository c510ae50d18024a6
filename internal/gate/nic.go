// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net"
	"sync"
)

// nic is an external interface to which the gate is attached.
type nic struct {
	index int
	mac   net.HardwareAddr
	up    bool // and the link has mac
	mtu   int  // when XDP was tried
	xdp   XDPMode
	plan  string // why XDP is not even tried; empty if it is
	why   string // why XDP is off
	busy  bool   // XDP is off because the program of another is attached
}

// nics are the external interfaces.
type nics struct {
	mu      sync.Mutex // taken after services.mu
	byName  map[string]*nic
	missing map[string]bool // configured, but there is no such device; only used by syncNICs
}

// has reports whether a device is an external interface.
func (n *nics) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.byName[name] != nil
}

// macs returns the MAC addresses of the external interfaces by index.
func (n *nics) macs() map[int]net.HardwareAddr {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[int]net.HardwareAddr, len(n.byName))
	for _, d := range n.byName {
		out[d.index] = d.mac
	}
	return out
}
