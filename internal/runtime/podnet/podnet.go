// SPDX-License-Identifier: Apache-2.0

// Package podnet creates the networks of pods on one machine, without CNI and without a bridge: each is a network
// namespace with a veth pair, connected to the machine by one host route.
//
//	machine                                pod
//	route ADDR/32 dev wv…                  ADDR/32 on eth0, default via 169.254.46.1 dev eth0 onlink
//	neighbor ADDR  = pod's MAC             neighbor 169.254.46.1 = host's MAC
//
// Both neighbor entries are permanent, so that no packet ever waits for ARP. No state is stored: what exists is read
// from the kernel.
package podnet

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"

	"wangell.loutres.me/internal/base/upkeep"
)

// Pool creates networks, keeps some ready, and removes them, in the network namespace in which NewPool was called. Its
// methods may be called concurrently.
type Pool struct {
	cfg   Config
	maker maker

	mu   sync.Mutex
	used map[netip.Addr]string // names of networks, by address
	// networks are those that exist, by their names, until they are about to be removed.
	networks map[string]Network
	ready    []Network
	last     netip.Addr // the address assigned last
	// refill serializes calls of Refill, so that two do not fill the same gap.
	refill sync.Mutex
	closed bool
	upkeep *upkeep.Keeper
	// keeping is held by each look at all networks, and while one stops being looked after.
	keeping sync.Mutex
}

// NewPool opens a pool. It does not create a network yet; see Adopt, Clean and Refill.
func NewPool(cfg Config) (*Pool, error) {
	if !cfg.Addresses.Addr().Is4() || cfg.Addresses.Bits() > 30 {
		return nil, fmt.Errorf("pod addresses %v: write an IPv4 range of /30 or larger", cfg.Addresses)
	}
	if cfg.DevicePrefix == "" || len(cfg.DevicePrefix) > 7 {
		return nil, fmt.Errorf("device prefix %q: write 1 to 7 bytes", cfg.DevicePrefix)
	}
	if cfg.MTU == 0 {
		cfg.MTU = 1500
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of pod networks: %w", err)
	}
	if err := RenameDevices(cfg.FormerPrefix, cfg.DevicePrefix); err != nil {
		return nil, err
	}
	host, err := netlink.NewHandle()
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	cfg.Addresses = cfg.Addresses.Masked()
	p := &Pool{cfg: cfg, maker: maker{cfg, host}, used: map[netip.Addr]string{}, networks: map[string]Network{},
		upkeep: upkeep.NewKeeper(cfg.Log, "the network of a pod")}
	p.last = p.randomAddr()
	return p, nil
}

// Adopt takes over a network of an earlier process by its name. The error wraps fs.ErrNotExist if the namespace or its
// device does not exist.
func (p *Pool) Adopt(name string) (Network, error) {
	n, err := p.maker.read(name)
	if err != nil {
		return Network{}, fmt.Errorf("adopt pod network %s: %w", name, err)
	}
	p.mu.Lock()
	p.used[n.Addr], p.networks[name] = name, n
	p.mu.Unlock()
	if p.cfg.Attach != nil {
		if err := p.cfg.Attach(n); err != nil {
			p.cfg.Log.Warn("a pod of an earlier process has no name server", "network", name, "error", err)
		}
	}
	return n, nil
}

// Clean removes the remains of an earlier process: networks and devices with this pool's folder or prefix that are
// neither in use nor ready.
func (p *Pool) Clean() error {
	known := map[string]bool{}
	p.mu.Lock()
	for _, name := range p.used {
		known[name], known[p.cfg.device(name)] = true, true
	}
	p.mu.Unlock()
	names := map[string]bool{}
	files, err := os.ReadDir(p.cfg.Dir)
	if err != nil {
		return fmt.Errorf("read pod networks: %w", err)
	}
	for _, f := range files {
		names[f.Name()] = true
	}
	links, err := p.maker.host.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	for _, l := range links {
		if p.cfg.owns(l) {
			names[l.Attrs().Name] = true
		}
	}
	var errs []error
	for name := range names {
		if !known[name] {
			errs = append(errs, p.maker.destroy(name))
		}
	}
	return errors.Join(errs...)
}

// Take returns a network for a pod: a ready one, or a new one, which takes some milliseconds. It does not refill.
func (p *Pool) Take() (Network, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return Network{}, fs.ErrClosed
	}
	if i := len(p.ready) - 1; i >= 0 {
		n := p.ready[i]
		p.ready = p.ready[:i]
		p.mu.Unlock()
		return n, nil
	}
	p.mu.Unlock()
	return p.make()
}

// Refill makes one network if fewer than Config.Ready are ready, and reports whether it did.
func (p *Pool) Refill() (made bool, err error) {
	p.refill.Lock()
	defer p.refill.Unlock()
	p.mu.Lock()
	enough := p.closed || len(p.ready) >= p.cfg.Ready
	p.mu.Unlock()
	if enough {
		return false, nil
	}
	n, err := p.make()
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return false, p.Release(n.Name)
	}
	p.ready = append(p.ready, n)
	p.mu.Unlock()
	return true, nil
}

// Release removes a network that was taken or adopted. A network that does not exist is not an error. Networks are not
// reused, so that whatever a pod left in one (sockets in TIME-WAIT, routes) is removed with it.
func (p *Pool) Release(name string) error {
	if p.cfg.Detach != nil {
		p.cfg.Detach(name)
	}
	p.keeping.Lock()
	p.mu.Lock()
	delete(p.networks, name)
	p.mu.Unlock()
	p.keeping.Unlock()
	if err := p.maker.destroy(name); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, n := range p.used {
		if n == name {
			delete(p.used, a)
		}
	}
	return nil
}

// Close removes the ready networks and closes the netlink socket. Networks in use stay.
func (p *Pool) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	ready := p.ready
	p.ready = nil
	p.mu.Unlock()
	// Wait for a running Refill, which removes what it makes.
	p.refill.Lock()
	defer p.refill.Unlock()
	var errs []error
	for _, n := range ready {
		errs = append(errs, p.Release(n.Name))
	}
	p.maker.host.Close()
	return errors.Join(errs...)
}

// make makes one network. On error nothing of it remains.
func (p *Pool) make() (Network, error) {
	name, addr, err := p.newName()
	if err != nil {
		return Network{}, err
	}
	n, err := p.maker.make(name, addr)
	if err == nil && p.cfg.Attach != nil {
		err = p.cfg.Attach(n)
	}
	if err != nil {
		return Network{}, errors.Join(err, p.Release(name))
	}
	p.mu.Lock()
	p.networks[name] = n
	p.mu.Unlock()
	return n, nil
}

// newName chooses the name of a new network and reserves a free address for it: one that no pod has, and to which the
// machine has no route of its own, as to its other networks.
func (p *Pool) newName() (string, netip.Addr, error) {
	name := p.cfg.DevicePrefix + randomHex(4)
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.last
	for a := p.next(first); a != first; a = p.next(a) {
		if _, taken := p.used[a]; !taken && !p.maker.leadsElsewhere(a) {
			p.used[a], p.last = name, a
			return name, a, nil
		}
	}
	return "", netip.Addr{}, fmt.Errorf("no pod address is free in %v, without the networks of this machine: configure "+
		"a larger range, or another one", p.cfg.Addresses)
}

// next returns the address after a in the range, without the range's first and last address.
func (p *Pool) next(a netip.Addr) netip.Addr {
	first := p.cfg.Addresses.Addr().Next()
	n := a.Next()
	if !p.cfg.Addresses.Contains(n) || !p.cfg.Addresses.Contains(n.Next()) {
		return first
	}
	return n
}

// randomAddr returns where a new process starts to assign addresses. It is random so that a client that still talks to
// a pod of the previous process does not reach another pod.
func (p *Pool) randomAddr() netip.Addr {
	var r [4]byte
	_, _ = rand.Read(r[:])
	a := p.cfg.Addresses.Addr().As4()
	bits := p.cfg.Addresses.Bits()
	for i := range a {
		keep := min(max(bits-8*i, 0), 8)
		a[i] |= r[i] & byte(0xff>>keep)
	}
	return p.next(netip.AddrFrom4(a))
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// Ready reports whether Config.Ready networks are ready.
func (p *Pool) Ready() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready) >= p.cfg.Ready
}
