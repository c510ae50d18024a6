// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// shortcuts holds the devices to which gate_pod is attached for Config.Shortcut.
type shortcuts struct {
	devices map[int]bool // by interface index; guarded by podTable.mu
}

// With Config.Shortcut, gate_pod is attached to the devices of all pods on this node. A connection that was established
// before its pod's device was attached stays in the stack.

// isPodDevice reports whether a device is the host end of a pod's device: its peer is in another network namespace.
func (g *Gate) isPodDevice(l netlink.Link) bool {
	a := l.Attrs()
	return (l.Type() == "veth" || l.Type() == "netkit") && a.NetNsID >= 0 && !g.nics.has(a.Name) &&
		!slices.Contains(g.cfg.Interfaces, a.Name)
}

// syncShortcuts attaches to the pods' devices that exist, and forgets the others. The calling thread must be in the
// gate's network namespace.
func (g *Gate) syncShortcuts() error {
	if !g.cfg.Shortcut {
		return nil
	}
	links, err := listDevices()
	if err != nil {
		return err
	}
	there := map[int]bool{}
	for _, l := range links {
		if g.isPodDevice(l) {
			there[l.Attrs().Index] = true
			g.addShortcut(l)
		}
	}
	g.podTable.mu.Lock()
	defer g.podTable.mu.Unlock()
	for index := range g.shortcuts.devices {
		if !there[index] {
			g.dropShortcut(index)
		}
	}
	return nil
}

// addShortcut attaches to a pod's device. Failure is no error: without the shortcut, connections are only slower.
func (g *Gate) addShortcut(l netlink.Link) {
	index := l.Attrs().Index
	g.podTable.mu.Lock()
	defer g.podTable.mu.Unlock()
	if g.shortcuts.devices[index] {
		return
	}
	if err := g.attachPod(index); err != nil {
		if !errors.Is(err, unix.ENODEV) {
			g.log.Warn("a pod's connections do not bypass the stack: cannot attach to its device",
				"device", l.Attrs().Name, "error", err)
		}
		return
	}
	g.shortcuts.devices[index] = true
}

// dropShortcut forgets a device that is gone. The caller holds podTable.mu.
func (g *Gate) dropShortcut(index int) {
	if !g.shortcuts.devices[index] {
		return
	}
	delete(g.shortcuts.devices, index)
	for _, pods := range g.podTable.services {
		for _, i := range pods {
			if g.pods.at(i).Ifindex == uint32(index) {
				return // RemovePod detaches it
			}
		}
	}
	if err := g.detach(podLink(index)); err != nil {
		g.log.Warn("cannot remove the link of a device that is gone", "index", index, "error", err)
	}
}

// followShortcut attaches to a pod's device that has appeared, and forgets one that is gone.
func (g *Gate) followShortcut(u netlink.LinkUpdate) {
	switch {
	case u.Header.Type == unix.RTM_DELLINK:
		g.podTable.mu.Lock()
		g.dropShortcut(u.Attrs().Index)
		g.podTable.mu.Unlock()
	case g.isPodDevice(u.Link):
		g.addShortcut(u.Link)
	}
}
