// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/upkeep"
)

// follower is the goroutine that follows devices.
type follower struct {
	stop chan struct{}  // closed by stopFollowing; nil if nothing is followed
	done sync.WaitGroup // the goroutine
}

// One goroutine follows the devices of the gate's network namespace, from Open to Close: the external interfaces, and
// those of pods for the shortcut.

const (
	// followPause is the pause between two subscriptions to changes of devices, each of which examines all devices.
	followPause = 100 * time.Millisecond
	// pollInterval is how often the gate checks for changes without an event: what it has set up, the order of programs,
	// and whether another XDP program is gone. A check takes a few microseconds per device.
	pollInterval = upkeep.Interval
)

// errStopped says that stopFollowing was called.
var errStopped = errors.New("stopped")

// follow starts to follow devices, until stopFollowing.
func (g *Gate) follow() error {
	here, err := netns.Get()
	if err != nil {
		return fmt.Errorf("opening this network namespace: %w", err)
	}
	g.follower.stop = make(chan struct{})
	g.follower.done.Go(func() {
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
			g.log.Error("the gate does not follow changes of network devices", "error", err)
		}
	})
	return nil
}

// stopFollowing stops following devices.
func (g *Gate) stopFollowing() {
	if g.follower.stop != nil {
		close(g.follower.stop)
		g.follower.done.Wait()
	}
}

// followDevices follows the devices of a network namespace. It returns nil if it must be called again because changes
// were lost.
func (g *Gate) followDevices(ns netns.NsHandle) error {
	end := make(chan struct{})
	stop := sync.OnceFunc(func() { close(end) })
	lost := func(err error) { g.log.Debug("following devices", "error", err) }
	links := make(chan netlink.LinkUpdate, 64)
	var routes chan netlink.RouteUpdate
	err := netlink.LinkSubscribeWithOptions(links, end, netlink.LinkSubscribeOptions{Namespace: &ns, ErrorCallback: lost})
	if err != nil {
		return fmt.Errorf("following devices: %w", err)
	}
	defer drain(stop, links)
	addrs := make(chan netlink.AddrUpdate, 64)
	err = netlink.AddrSubscribeWithOptions(addrs, end, netlink.AddrSubscribeOptions{Namespace: &ns, ErrorCallback: lost})
	if err != nil {
		return fmt.Errorf("following addresses: %w", err)
	}
	defer drain(stop, addrs)
	if g.cfg.DefaultInterfaces {
		routes = make(chan netlink.RouteUpdate, 64)
		err := netlink.RouteSubscribeWithOptions(routes, end,
			netlink.RouteSubscribeOptions{Namespace: &ns, ErrorCallback: lost})
		if err != nil {
			return fmt.Errorf("following routes: %w", err)
		}
		defer drain(stop, routes)
	}
	// Catch up with changes from before the subscription.
	if err := g.syncShortcuts(); err != nil {
		return err
	}
	g.followNICs()
	g.followOwnAddresses()
	var ownChanged <-chan time.Time
	again := time.NewTicker(pollInterval)
	defer again.Stop()
	for {
		ok := true
		select {
		case <-g.follower.stop:
			return errStopped
		case <-again.C:
			g.poll()
		case u, more := <-links:
			if ok = more; ok {
				g.linkChanged(u)
			}
		case u, more := <-addrs:
			if ok = more; ok {
				g.addressChanged(u)
			}
			if ownChanged == nil {
				ownChanged = time.After(ownPause)
			}
		case <-ownChanged:
			ownChanged = nil
			g.followOwnAddresses()
		case u, more := <-routes:
			if ok = more; ok && isDefault(&u.Route) {
				g.followNICs()
			}
		}
		if !ok {
			return nil
		}
	}
}

// drain ends a subscription, whose goroutine must not block on a send before it sees the end.
func drain[T any](stop func(), updates <-chan T) {
	stop()
	for range updates {
	}
}

// linkChanged handles a change of a device.
func (g *Gate) linkChanged(u netlink.LinkUpdate) {
	if u.Family == unix.AF_BRIDGE {
		return // about a bridge port: the device itself stays
	}
	if g.cfg.Shortcut {
		g.followShortcut(u)
	}
	if g.concernsNIC(u.Link) {
		g.followNICs()
	}
}

// concernsNIC reports whether a device is an external interface, was or may become one, or is a VLAN on one.
func (g *Gate) concernsNIC(d netlink.Link) bool {
	g.nics.mu.Lock()
	defer g.nics.mu.Unlock()
	a := d.Attrs()
	if g.nics.byName[a.Name] != nil || slices.Contains(g.cfg.Interfaces, a.Name) {
		return true
	}
	for _, n := range g.nics.byName {
		if n.index == a.Index || d.Type() == "vlan" && n.index == a.ParentIndex {
			return true
		}
	}
	return false
}

// poll checks for changes without an event.
func (g *Gate) poll() {
	g.restore()
	if g.xdpBusy() {
		g.followNICs()
	}
}

// followNICs follows changes of the external interfaces.
func (g *Gate) followNICs() {
	if err := g.syncNICs(false); err != nil {
		g.log.Error("the gate cannot follow a change of network devices", "error", err)
	}
}

// addressChanged handles an address that this machine has got or lost. The address that setSource has added stays when
// the machine gets others, because connections may use it.
func (g *Gate) addressChanged(u netlink.AddrUpdate) {
	switch {
	case g.cfg.EncapPort != 0:
		if addrOf(&u.LinkAddress) == g.cfg.NodeAddr {
			g.followNICs()
		}
	case !u.NewAddr:
		if err := g.dev.setSource(); err != nil {
			g.log.Error("programs on this machine may not reach services", "error", err)
		}
	}
}
