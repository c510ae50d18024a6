// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
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
	busy  bool   // XDP is off because another XDP program is attached
}

// nics tracks the external interfaces.
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

// AttachedXDP says how gate_xdp is attached to an external interface.
type AttachedXDP struct {
	Mode XDPMode // native, generic or off
	Why  string  // why it is off; empty if it is not, or as configured
}

// Attached returns how XDP is attached to each external interface, by name.
func (g *Gate) Attached() map[string]AttachedXDP {
	g.nics.mu.Lock()
	defer g.nics.mu.Unlock()
	out := make(map[string]AttachedXDP, len(g.nics.byName))
	for name, n := range g.nics.byName {
		out[name] = AttachedXDP{n.xdp, n.why}
	}
	return out
}

// xdpBusy reports whether XDP is off at some interface because another XDP program is attached.
func (g *Gate) xdpBusy() bool {
	g.nics.mu.Lock()
	defer g.nics.mu.Unlock()
	for _, n := range g.nics.byName {
		if n.busy {
			return true
		}
	}
	return false
}

// wantedNICs returns the names of the external interfaces. An interface that the gate found by itself stays in the list
// while its device exists, even if the default route or the node's address is elsewhere for a moment. The caller holds
// nics.mu.
func (g *Gate) wantedNICs() ([]string, error) {
	names := slices.Clone(g.cfg.Interfaces)
	add := func(name string) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if g.cfg.DefaultInterfaces {
		found, err := DefaultInterfaces()
		if err != nil {
			return nil, err
		}
		for _, name := range found {
			add(name)
		}
	}
	if g.cfg.EncapPort != 0 {
		name, err := interfaceWith(g.cfg.NodeAddr)
		if err != nil && len(g.nics.byName) == 0 {
			return nil, err
		}
		if err != nil {
			g.log.Warn("packets of other nodes may not arrive", "error", err)
		} else {
			add(name)
		}
	}
	for name := range g.nics.byName {
		if len(g.cfg.Interfaces) == 0 || g.cfg.EncapPort != 0 {
			add(name)
		}
	}
	return names, nil
}

// syncNICs attaches to the external interfaces, and follows what has changed: their devices, MAC addresses, and whether
// XDP can be used there. With strict, it fails at the first error; otherwise it does as much as it can. The calling
// thread must be in the gate's network namespace.
func (g *Gate) syncNICs(strict bool) error {
	g.nics.mu.Lock()
	news, err := g.syncNICsLocked(strict)
	g.nics.mu.Unlock()
	if news && !strict {
		g.announceAll()
	}
	return err
}

// syncNICsLocked is syncNICs for a caller that holds nics.mu. It reports whether the VIPs must be announced to the
// link again.
func (g *Gate) syncNICsLocked(strict bool) (news bool, err error) {
	names, err := g.wantedNICs()
	if err != nil {
		return false, err
	}
	devices, err := listDevices()
	if err != nil {
		return false, err
	}
	byName, vlans := map[string]netlink.Link{}, vlansOn(devices)
	for _, d := range devices {
		byName[d.Attrs().Name] = d
	}
	var errs []error
	for name, n := range g.nics.byName {
		if d := byName[name]; d == nil || d.Attrs().Index != n.index || !slices.Contains(names, name) {
			errs = append(errs, g.dropNIC(name, n))
		}
	}
	for _, name := range names {
		d := byName[name]
		if d == nil {
			err := fmt.Errorf("interface %s: no such device: name one that exists with --interface", name)
			if strict {
				return false, err
			}
			if !g.nics.missing[name] {
				g.log.Warn("an external interface is gone: the gate attaches again when it is back", "interface", name)
			}
			g.nics.missing[name] = true
			continue
		}
		delete(g.nics.missing, name)
		changed, err := g.syncNIC(d, vlans[d.Attrs().Index], strict)
		if err != nil && strict {
			return false, err
		}
		news = news || changed
		errs = append(errs, err)
	}
	return news, errors.Join(errs...)
}

// syncNIC attaches to an external interface, or follows its changes. It reports whether its MAC address is new.
func (g *Gate) syncNIC(d netlink.Link, vlans []string, strict bool) (news bool, err error) {
	name, index, mac := d.Attrs().Name, d.Attrs().Index, d.Attrs().HardwareAddr
	if len(mac) != 6 {
		return false, fmt.Errorf("interface %s: not an Ethernet device: name another with --interface", name)
	}
	n := g.nics.byName[name]
	known := n != nil
	if !known {
		n = &nic{index: index}
	}
	if !bytes.Equal(n.mac, mac) {
		v := gateNic{Mac: hardwareAddr(mac), Tx: 1}
		if d.Type() == "veth" {
			v.Tx = 0
		}
		if err := g.objs.Nics.Put(uint32(index), v); err != nil {
			return false, fmt.Errorf("interface %s: writing its MAC address to the gate's map: %w", name, err)
		}
		if known {
			g.log.Info("an external interface has another MAC address", "interface", name, "mac", mac)
		}
		n.mac, n.up = mac, false
	}
	up := d.Attrs().Flags&net.FlagUp != 0
	n.up, news = up, up && !n.up
	plan := g.refusesXDP(d, vlans)
	if !known {
		if err := g.attachTCX("nic-"+name, index, ebpf.AttachTCXIngress, g.objs.GateNic); err != nil {
			return news, err
		}
		g.nics.byName[name] = n
		if !strict {
			g.log.Info("the gate is attached to an external interface", "interface", name)
		}
	}
	// A driver may accept XDP with another MTU.
	free := d.Attrs().Xdp == nil || !d.Attrs().Xdp.Attached
	again := n.xdp == XDPOff && plan == "" && (n.busy && free || n.mtu != d.Attrs().MTU)
	if known && plan == n.plan && !again {
		return news, nil
	}
	n.plan, n.mtu = plan, d.Attrs().MTU
	err = g.attachXDP(n, name)
	if err != nil && !strict {
		g.log.Warn("XDP is off", "interface", name, "error", err)
		n.xdp, n.why, err = XDPOff, err.Error(), nil
	}
	return news, err
}

// vlansOn returns the names of the VLAN devices among some devices by the index of the device below.
func vlansOn(devices []netlink.Link) map[int][]string {
	out := map[int][]string{}
	for _, d := range devices {
		if a := d.Attrs(); d.Type() == "vlan" {
			out[a.ParentIndex] = append(out[a.ParentIndex], a.Name)
		}
	}
	return out
}

// dropNIC detaches from an external interface that is gone or has another name.
func (g *Gate) dropNIC(name string, n *nic) error {
	delete(g.nics.byName, name)
	errs := []error{g.detach("nic-" + name)}
	for _, mode := range []XDPMode{XDPNative, XDPGeneric} {
		errs = append(errs, g.detach(xdpLink(mode, name)))
	}
	if err := g.objs.Nics.Delete(uint32(n.index)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		errs = append(errs, fmt.Errorf("interface %s: removing it from the gate's map: %w", name, err))
	}
	return errors.Join(errs...)
}
