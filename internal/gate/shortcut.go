// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// shortcuts attaches gate_pod to the devices of all pods on this node, whoever made them: their connections to services
// go round the node's stack once it has let the SYN pass. A connection that is established before its pod is attached
// to stays in the stack.
type shortcuts struct {
	devices map[int]bool // by index: what is attached to; podTable.mu guards it
	stop    chan struct{}
	done    sync.WaitGroup
}

// isPodDevice tells whether a device is the host end of a pod's: one of a pair, the other in another network namespace.
func (g *Gate) isPodDevice(l netlink.Link) bool {
	a := l.Attrs()
	return (l.Type() == "veth" || l.Type() == "netkit") && a.NetNsID >= 0 && !slices.Contains(g.cfg.Interfaces, a.Name)
}

// syncShortcuts attaches to the pods' devices that are there, and forgets those that are not. The calling thread must be in
// the gate's network namespace.
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

// addShortcut attaches to a pod's device. One that goes meanwhile is no error; without the shortcut all works, only slower.
func (g *Gate) addShortcut(l netlink.Link) {
	index := l.Attrs().Index
	g.podTable.mu.Lock()
	defer g.podTable.mu.Unlock()
	if g.shortcuts.devices[index] {
		return
	}
	if err := g.attachPod(index); err != nil {
		if !errors.Is(err, unix.ENODEV) {
			g.log.Warn("a pod's connections go through the stack: its device cannot be attached to", "device", l.Attrs().Name, "error", err)
		}
		return
	}
	g.shortcuts.devices[index] = true
}

// dropShortcut forgets a device that is gone. podTable.mu is held.
func (g *Gate) dropShortcut(index int) {
	if !g.shortcuts.devices[index] {
		return
	}
	delete(g.shortcuts.devices, index)
	for _, i := range g.podTable.indices {
		if g.pods.at(i).Ifindex == uint32(index) {
			return // RemovePod detaches
		}
	}
	if err := g.detach(podLink(uint32(index))); err != nil {
		g.log.Warn("the link of a device that is gone remains", "index", index, "error", err)
	}
}

// attachPod attaches to a pod's device, unless that is done. podTable.mu is held.
func (g *Gate) attachPod(ifindex int) error {
	name := podLink(uint32(ifindex))
	if g.links[name] != nil {
		return nil
	}
	return g.attachTCX(name, ifindex, ebpf.AttachTCXIngress, g.objs.GatePod)
}

// detachPod detaches from the device of a pod that is no service's any more; it may still be a client. podTable.mu is held.
func (g *Gate) detachPod(ifindex int) error {
	if g.shortcuts.devices[ifindex] {
		return nil
	}
	return g.detach(podLink(uint32(ifindex)))
}

// followShortcuts attaches to pods' devices as they come, until the gate is closed.
func (g *Gate) followShortcuts() error {
	here, err := netns.Get()
	if err != nil {
		return fmt.Errorf("opening this network namespace: %w", err)
	}
	g.shortcuts.stop = make(chan struct{})
	g.shortcuts.done.Go(func() {
		defer here.Close()
		// Devices are known by their index in this thread's namespace. It is never unlocked, so it ends with the goroutine.
		runtime.LockOSThread()
		err := netns.Set(here)
		for err == nil {
			if err = g.followDevices(here); err == nil {
				time.Sleep(followPause)
			}
		}
		if !errors.Is(err, errStopped) {
			g.log.Error("connections of new pods go through the stack", "error", err)
		}
	})
	return nil
}

var errStopped = errors.New("stopped")

// followPause is between two attempts to follow devices: they are all looked at in each.
const followPause = 100 * time.Millisecond

// followDevices follows the devices of a network namespace; nil: until more changed at once than could be followed.
func (g *Gate) followDevices(ns netns.NsHandle) error {
	updates, end := make(chan netlink.LinkUpdate, 64), make(chan struct{})
	if err := netlink.LinkSubscribeWithOptions(updates, end, netlink.LinkSubscribeOptions{
		Namespace: &ns, ErrorCallback: func(err error) { g.log.Debug("following devices", "error", err) },
	}); err != nil {
		return fmt.Errorf("following devices: %w", err)
	}
	defer func() {
		close(end)
		for range updates { // its goroutine ends when the socket is closed, and must not wait for a reader
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
			case u.Family == unix.AF_BRIDGE: // of a bridge's port, which stays a device
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

// close ends what follows devices.
func (s *shortcuts) close() {
	if s.stop != nil {
		close(s.stop)
		s.done.Wait()
	}
}
