// SPDX-License-Identifier: Apache-2.0

// Package egress lets pods on one machine reach other networks, with the machine's address as their source, and rejects
// packets to addresses of the instance that lead nowhere. It has an nftables table of its own, removed by Close, and
// changes no other table.
//
// The kernel forwards packets from a device if net.ipv4.conf.DEVICE.forwarding is set. Pods' own devices have it. For
// what comes back, it is switched on at the devices of the machine's routes where it is off; the table then keeps the
// machine from forwarding anything else from these. Close switches it off again, unless somebody has made the machine a
// router meanwhile (net.ipv4.ip_forward).
//
// No state is stored outside the kernel: the devices that were switched on are a set of the table, so that Remove works
// for an instance that was killed.
package egress

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/upkeep"
)

// Egress is the way out for pods in one network namespace.
type Egress struct {
	cfg    Config
	upkeep *upkeep.Keeper
	work   chan func()   // for the goroutine that is in the network namespace
	stop   chan struct{} // closed by Close
	done   chan struct{} // closed when the goroutine ends

	// The rest is that goroutine's.
	rules ruleset
	table tableContent // as apply has left it
	left  error        // why something could not be removed
}

// Open opens the way out in the network namespace of the calling thread, and takes over the state that a killed
// process left. The error says what the kernel lacks.
func Open(cfg Config) (*Egress, error) {
	home, err := netns.Get()
	if err != nil {
		return nil, err
	}
	e := &Egress{cfg: cfg, upkeep: upkeep.NewKeeper(cfg.Log, "the way out of pods"),
		work: make(chan func()), stop: make(chan struct{}), done: make(chan struct{}),
		rules: ruleset{cfg: cfg}}
	started := make(chan error, 1)
	go func() {
		defer close(e.done)
		defer home.Close()
		runtime.LockOSThread() // it ends with the goroutine, as it may be in another namespace than the process
		err := netns.Set(home)
		if err == nil {
			err = e.open()
		}
		started <- err
		if err == nil {
			e.run()
			e.left = remove(cfg)
		}
	}()
	if err := <-started; err != nil {
		<-e.done
		return nil, err
	}
	return e, nil
}

// SetServices sets the service addresses that lead somewhere, and the services that are published at TCP ports of the
// machine, at one of its addresses or, with 0.0.0.0, at all. Packets to the rest of the range of service addresses are
// rejected.
func (e *Egress) SetServices(addrs []netip.Addr, published map[netip.AddrPort]netip.AddrPort) error {
	return e.do(func() error {
		e.rules.services, e.rules.published = addrs, published
		return errors.Join(e.apply(), e.acceptLoopback())
	})
}

// Refresh looks at the machine's devices at once. Call it once the gate's device exists.
func (e *Egress) Refresh() error { return e.do(e.acceptLoopback) }

// acceptLoopback lets clients on loopback addresses reach published services by the gate's device, if it exists: the
// kernel sends and takes such addresses on a device only if its route_localnet is set.
func (e *Egress) acceptLoopback() error {
	if len(e.rules.published) == 0 {
		return nil
	}
	err := os.WriteFile(sysctlLocalnet, []byte("1"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("loopback addresses on %s: %w", gateDevice, err)
	}
	return nil
}

// sysctlLocalnet is the setting of the gate's device for loopback addresses.
const sysctlLocalnet = "/proc/sys/net/ipv4/conf/" + gateDevice + "/route_localnet"

// Close removes what Open made.
func (e *Egress) Close() error {
	close(e.stop)
	<-e.done
	return e.left
}

// do calls f on the goroutine that is in the network namespace.
func (e *Egress) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case e.work <- func() { result <- f() }:
		return <-result
	case <-e.done:
		return net.ErrClosed
	}
}

// open makes the table and the route, and switches forwarding on.
func (e *Egress) open() error {
	var err error
	if e.rules.switched, err = e.cfg.readSwitched(); err != nil {
		return err
	}
	if err := e.apply(); err != nil {
		return err
	}
	if err := netlink.RouteReplace(e.cfg.unreachable()); err != nil {
		return errors.Join(fmt.Errorf("route for pod addresses that lead nowhere: %w", err), remove(e.cfg))
	}
	if err := e.follow(); err != nil {
		return errors.Join(err, remove(e.cfg))
	}
	return nil
}

func (e *Egress) apply() error {
	conn, err := nftables.New()
	if err == nil {
		err = e.rules.apply(conn)
	}
	if err == nil {
		e.table, err = e.cfg.readTable()
	}
	if err != nil {
		return fmt.Errorf("nftables: %w: the kernel needs nf_tables with nft_masq, nft_ct, nft_fib and nft_reject", err)
	}
	return nil
}

// follow switches forwarding on at the devices of the machine's routes. The table notes them first, for Remove.
func (e *Egress) follow() error {
	devices, err := e.cfg.uplinks()
	if err != nil {
		return err
	}
	switched := toSwitch(devices, e.rules.switched, forwards)
	if !slices.Equal(switched, e.rules.switched) {
		e.rules.switched = switched
		if err := e.apply(); err != nil {
			return err
		}
	}
	var errs []error
	for _, device := range switched {
		if forwards(device) {
			continue
		}
		if err := setForwarding(device, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// settle is how long changes of devices and routes are collected before they are handled: each pod causes one.
const settle = 200 * time.Millisecond

// run executes requests, puts back what others remove, and follows changes of devices, routes and forwarding, until
// Close.
func (e *Egress) run() {
	changes, unsubscribe, err := subscribe()
	if err != nil {
		e.cfg.Log.Warn("pods will not reach networks that the machine joins later", "error", err)
	}
	defer unsubscribe()
	var look <-chan time.Time
	again := time.NewTicker(upkeep.Interval)
	defer again.Stop()
	for {
		select {
		case f := <-e.work:
			f()
		case <-changes:
			if look == nil {
				look = time.After(settle)
			}
		case <-again.C:
			e.upkeep.Keep(e.parts())
		case <-look:
			look = nil
			e.upkeep.Keep(e.parts())
			err := e.follow()
			if errors.Is(err, netlink.ErrDumpInterrupted) { // they changed meanwhile
				look = time.After(settle)
				continue
			}
			if err != nil {
				e.cfg.Log.Warn("the way out of pods does not follow the machine's devices", "error", err)
			}
		case <-e.stop:
			return
		}
	}
}

// Remove removes what a killed process left in the network namespace of the calling thread.
func Remove(cfg Config) error { return remove(cfg) }

func remove(cfg Config) error {
	switched, err := cfg.readSwitched()
	if err != nil {
		if missing(err) {
			err = nil // without nf_tables there never was anything
		}
		return err
	}
	var errs []error
	if !forwards("all") {
		for _, device := range switched {
			if err := setForwarding(device, false); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	if err := netlink.RouteDel(cfg.unreachable()); err != nil && !errors.Is(err, unix.ESRCH) {
		errs = append(errs, fmt.Errorf("remove the route for pod addresses: %w", err))
	}
	conn, err := nftables.New()
	if err == nil {
		cfg.drop(conn)
		err = conn.Flush()
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("remove the nftables table %s: %w", cfg.table().Name, err))
	}
	return errors.Join(errs...)
}

// unreachable is a route for pod addresses that no pod has: packets to them would otherwise leave the machine by its
// default route.
func (c Config) unreachable() *netlink.Route {
	p := c.Pods.Masked()
	return &netlink.Route{
		Type: unix.RTN_UNREACHABLE, Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)},
		Priority: routePriority,
	}
}

// routePriority distinguishes the route from others for the same range.
const routePriority = 46046
