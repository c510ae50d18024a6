// SPDX-License-Identifier: Apache-2.0

// Package netlab builds networks from Linux network namespaces for experiments and tests: a node and some clients, each
// in its own namespace, on one Ethernet segment. It does not touch the machine's own devices, routes or settings, and
// no packet can leave the machine.
//
//	     namespace "link": bridge br0
//	   ┌─────────┬─────────────┬──────────┐
//	  node      client0       client1    …      (ports of the bridge)
//	   │         │             │
//	  eth0      eth0          eth0              10.46.200.1  .10  .11  …
//	ns "node"  ns "client0"  ns "client1"
//
// All of it needs root (CAP_NET_ADMIN and CAP_SYS_ADMIN).
package netlab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// Net is a network created by New.
type Net struct {
	// Node is the namespace of the node. Its default route goes through eth0.
	Node *Namespace
	// Link is the namespace of the bridge. Ports are named after the hosts ("node", "client0", …).
	Link *Namespace
	// Clients are the namespaces of the clients.
	Clients []*Namespace

	prefix string
}

// New creates a network, after removing the remains of killed processes (CleanStale). The caller removes it with
// Close. On error nothing remains.
func New(cfg Config) (_ *Net, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("create a network: needs root: run with sudo")
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
			err = errors.Join(fmt.Errorf("create network %s: %w", prefix, err), n.Close())
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
	if err := wire(n.Link, n.Node, n.Clients, cfg); err != nil {
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

// Close removes the network. Processes that still run in its namespaces are killed and reported as errors, because
// their tests should have ended them. Close may be called more than once.
func (n *Net) Close() error {
	var errs []error
	// A namespace lives until its last user is gone. Removing the veths first stops all traffic at once.
	if n.Link != nil && n.Link.open() {
		if err := unwire(n.Link); err != nil {
			errs = append(errs, err)
		}
	}
	for _, ns := range n.Namespaces() {
		left, err := ns.remove()
		if err != nil {
			errs = append(errs, err)
		}
		for _, p := range left {
			errs = append(errs, fmt.Errorf("network namespace %s: process %s was still running and was killed", ns.Name, p))
		}
	}
	return errors.Join(errs...)
}

// uniquePrefix returns the prefix of the names of a network's namespaces: Prefix, the pid and the start time of this
// process (because pids are reused), and a random part.
func uniquePrefix() (string, error) {
	start, err := startTime(os.Getpid())
	if err != nil {
		return "", fmt.Errorf("create a network: %w", err)
	}
	var b [3]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("create a network: %w", err)
	}
	return fmt.Sprintf("%s%d-%s-%s-", Prefix, os.Getpid(), start, hex.EncodeToString(b[:])), nil
}
