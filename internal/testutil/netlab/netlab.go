// SPDX-License-Identifier: Apache-2.0

// Package netlab makes real networks out of Linux network namespaces, for the lab, the demo and the
// tests: a node and some clients, each in a namespace of its own, on one Ethernet segment. Nothing of
// it touches the machine's own devices, routes or settings, and no packet can leave the machine.
//
//	     namespace "link": bridge br0
//	   ┌─────────┬─────────────┬──────────┐
//	  node      client0       client1    …      (ports of the bridge)
//	   │         │             │
//	  eth0      eth0          eth0              10.46.200.1  .10  .11  …
//	ns "node"  ns "client0"  ns "client1"
//
// Everything needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN).
package netlab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
)

// The default networks.
var (
	// DefaultLink is the network of the segment.
	DefaultLink = netip.MustParsePrefix("10.46.200.0/24")
	// DefaultServices is the range of service addresses.
	DefaultServices = netip.MustParsePrefix("10.46.100.0/24")
)

// Device is the name of the device by which a node or client is on the link.
const Device = "eth0"

// Config says what to make. The zero value is a node and one client.
type Config struct {
	// Clients is the number of clients, 1-200. 0 means 1.
	Clients int
	// Link is the network of the segment, a /24 or larger. The node has its address number 1, client i number
	// 10+i; the last host address is the node's default gateway, at which nobody is. Default: DefaultLink.
	Link netip.Prefix
	// Services is the range of service addresses, to which clients have a route directly on the link, so that
	// they ask for service addresses by ARP. Default: DefaultServices.
	Services netip.Prefix
	// FullChecksums turns checksum offload off on the clients and the node, so that every packet on the link
	// carries a full checksum, as from a real wire. Without it, a veth hands on partial checksums.
	FullChecksums bool
}

// Net is a network made by New.
type Net struct {
	// Node is the namespace of the node; it has a default route by eth0.
	Node *Namespace
	// Link is the namespace of the bridge; its ports have the names of the hosts ("node", "client0", …).
	Link *Namespace
	// Clients are the namespaces of the clients.
	Clients []*Namespace

	prefix string
}

// New makes a network as cfg says. It first removes what killed processes left (CleanStale). On error nothing
// of the network remains. The caller ends it with Close.
func New(cfg Config) (_ *Net, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("make a network: needs root: run it with sudo")
	}
	if err := CleanStale(); err != nil {
		return nil, err
	}
	prefix, err := uniquePrefix()
	if err != nil {
		return nil, err
	}
	n := &Net{prefix: prefix}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("make network %s: %w", prefix, err), n.Close())
		}
	}()
	add := func(host string, number int) (*Namespace, error) {
		ns, err := newNamespace(prefix+host, host)
		if err == nil && number > 0 {
			ns.Addr = nth(cfg.Link, number)
		}
		return ns, err
	}
	if n.Link, err = add("link", 0); err != nil {
		return nil, err
	}
	if n.Node, err = add("node", 1); err != nil {
		return nil, err
	}
	for i := range cfg.Clients {
		c, err := add("client"+strconv.Itoa(i), 10+i)
		if err != nil {
			return nil, err
		}
		n.Clients = append(n.Clients, c)
	}
	if err := n.wire(cfg); err != nil {
		return nil, err
	}
	return n, nil
}

// Client returns the first client.
func (n *Net) Client() *Namespace { return n.Clients[0] }

// Namespaces returns all namespaces of n.
func (n *Net) Namespaces() []*Namespace {
	var all []*Namespace
	for _, ns := range append([]*Namespace{n.Link, n.Node}, n.Clients...) {
		if ns != nil {
			all = append(all, ns)
		}
	}
	return all
}

// Close removes the network. A process that still runs in one of its namespaces is killed, and told as an error,
// because whoever started it should have ended it. Close may be called more than once.
func (n *Net) Close() error {
	var errs []error
	// The namespaces end when their last user has gone; the cables are taken out now, so that nothing moves any more.
	if n.Link != nil && n.Link.open() {
		if err := n.unwire(); err != nil {
			errs = append(errs, err)
		}
	}
	for _, ns := range n.Namespaces() {
		left, err := ns.remove()
		if err != nil {
			errs = append(errs, err)
		}
		for _, p := range left {
			errs = append(errs, fmt.Errorf("network namespace %s: process %s was still running at Close and was killed", ns.Name, p))
		}
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() (Config, error) {
	if c.Clients == 0 {
		c.Clients = 1
	}
	if !c.Link.IsValid() {
		c.Link = DefaultLink
	}
	if !c.Services.IsValid() {
		c.Services = DefaultServices
	}
	c.Link, c.Services = c.Link.Masked(), c.Services.Masked()
	switch {
	case c.Clients < 0 || c.Clients > 200:
		return c, fmt.Errorf("make a network: %d clients: want 1 to 200", c.Clients)
	case !c.Link.Addr().Is4() || c.Link.Bits() > 24 || c.Link.Bits() < 8:
		return c, fmt.Errorf("make a network: link %s: want an IPv4 network between /8 and /24", c.Link)
	case !c.Services.Addr().Is4():
		return c, fmt.Errorf("make a network: services %s: want an IPv4 network", c.Services)
	case c.Link.Overlaps(c.Services):
		return c, fmt.Errorf("make a network: link %s and services %s overlap: choose other ranges", c.Link, c.Services)
	}
	return c, nil
}

// nth returns address number i of an IPv4 network; a negative i counts from its end (-1 is the broadcast address).
func nth(p netip.Prefix, i int) netip.Addr {
	b := p.Masked().Addr().As4()
	base := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	if i < 0 {
		base += uint32(1) << (32 - p.Bits())
	}
	v := base + uint32(int32(i))
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// uniquePrefix returns how the names of a new network's namespaces begin: our mark, the pid of this process and
// its start time (pids are used again), and a random part.
func uniquePrefix() (string, error) {
	start, err := startTime(os.Getpid())
	if err != nil {
		return "", fmt.Errorf("make a network: %w", err)
	}
	var b [3]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make a network: %w", err)
	}
	return fmt.Sprintf("%s%d-%s-%s-", Prefix, os.Getpid(), start, hex.EncodeToString(b[:])), nil
}
