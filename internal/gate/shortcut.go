// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// With Config.Shortcut, gate_pod is attached to the devices of all pods on this node. A connection that was established
// before its pod's device was attached stays in the stack.

// followPause is the pause between two subscriptions to changes of devices, each of which examines all devices.
const followPause = 100 * time.Millisecond

// isPodDevice reports whether a device is the host end of a pod's: its peer is in another network namespace.
func (g *Gate) isPodDevice(l netlink.Link) bool {
	a := l.Attrs()
	return (l.Type() == "veth" || l.Type() == "netkit") && a.NetNsID >= 0 && !slices.Contains(g.cfg.Interfaces, a.Name)
}

// syncShortcuts attaches to the pods' devices that exist, and forgets the others. The calling thread must be in the
// gate's network namespace.
func (g *Gate) syncShortcuts() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("listing devices: %w", err)
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
	for _, i := range g.podTable.indices {
		if g.pods.at(i).Ifindex == uint32(index) {
			return // RemovePod detaches it
		}
	}
	if err := g.detach(podLink(index)); err != nil {
		g.log.Warn("cannot remove the link of a device that is gone", "index", index, "error", err)
	}
}

// followShortcuts attaches to pods' devices as they appear, until stopShortcuts.
func (g *Gate) followShortcuts() error {
	here, err := netns.Get()
	if err != nil {
		return fmt.Errorf("opening this network namespace: %w", err)
	}
	g.shortcuts.stop = make(chan struct{})
	g.shortcuts.done.Go(func() {
		defer here.Close()
		// Interface indices are only valid in this network namespace. The thread is never unlocked, so it ends with the
		// goroutine.
		runtime.LockOSThread()
		err := netns.Set(here)
		for err == nil {
			if err = g.followDevices(here); err == nil {
				time.Sleep(followPause)
			}
		}
		if !errors.Is(err, errStopped) {
			g.log.Error("connections of new pods do not bypass the stack", "error", err)
		}
	})
	return nil
}

// errStopped says that stopShortcuts was called.
var errStopped = errors.New("stopped")

// followDevices follows the devices of a network namespace. It returns nil if it must be called again because changes
// were lost.
func (g *Gate) followDevices(ns netns.NsHandle) error {
	updates, end := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	if err := netlink.LinkSubscribeWithOptions(updates, end, netlink.LinkSubscribeOptions{
		Namespace:     &ns,
		ErrorCallback: func(err error) { g.log.Debug("following devices", "error", err) },
	}); err != nil {
		return fmt.Errorf("following devices: %w", err)
	}
	defer func() {
		close(end)
		for range updates { // the subscription's goroutine must not block on a send before it sees end
		}
	}()
	if err := g.syncShortcuts(); err != nil {
		return err
	}
	for {
		select {
		case <-g.shortcuts.stop:
			return errStopped
		case u, ok := <-updates:
			switch {
			case !ok:
				return nil
			case u.Family == unix.AF_BRIDGE: // about a bridge port: the device itself stays
			case u.Header.Type == unix.RTM_DELLINK:
				g.podTable.mu.Lock()
				g.dropShortcut(u.Attrs().Index)
				g.podTable.mu.Unlock()
			case g.isPodDevice(u.Link):
				g.addShortcut(u.Link)
			}
		}
	}
}

// stopShortcuts stops following devices.
func (g *Gate) stopShortcuts() {
	if g.shortcuts.stop != nil {
		close(g.shortcuts.stop)
		g.shortcuts.done.Wait()
	}
}
