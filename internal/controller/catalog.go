// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// defaultMaxServices is how many services the gates have room for by default.
const defaultMaxServices = 16384

// changes are the differences between two sets of wanted services.
type changes struct {
	first   bool // before, there were no services
	added   []*wanted
	changed []*wanted
	removed []runtime.Key
	prepare []*wanted     // whose images may have to be fetched
	found   []runtime.Pod // if first: the pods that ran before
}

// catalog is the set of wanted services.
type catalog struct {
	mu      sync.Mutex // also makes updates take turns
	wanted  map[runtime.Key]*wanted
	holders map[netip.AddrPort]runtime.Key
	most    int // services that the gates have room for
	synced  bool
	closed  bool
}

func newCatalog(most int) *catalog {
	return &catalog{wanted: map[runtime.Key]*wanted{}, holders: map[netip.AddrPort]runtime.Key{}, most: most}
}

// plan returns the changes that put some services and remove others. An error names the service that is not possible.
func (c *catalog) plan(put []Service, remove []runtime.Key) (ch changes, err error) {
	gone := make(map[runtime.Key]bool, len(remove))
	for _, k := range remove {
		if c.wanted[k] != nil && !gone[k] {
			gone[k] = true
			ch.removed = append(ch.removed, k)
		}
	}
	next := make(map[runtime.Key]*wanted, len(put))
	for _, s := range put {
		w := newWanted(s)
		if !s.Addr.Is4() {
			return ch, fmt.Errorf("service %s: address %v is not IPv4", w.key, s.Addr)
		}
		if next[w.key] != nil || gone[w.key] {
			return ch, fmt.Errorf("service %s: given twice: remove one", w.key)
		}
		next[w.key] = w
		old := c.wanted[w.key]
		if old != nil && old.equal(w) {
			continue
		}
		w.hash = v1alpha1.Hash(&w.spec.Spec)
		if old == nil {
			ch.added = append(ch.added, w)
		} else {
			ch.changed = append(ch.changed, w)
		}
		if old != nil && w.sameImage(old) {
			w.prepared.Store(old.prepared.Load())
		} else {
			ch.prepare = append(ch.prepare, w)
		}
	}
	if n := len(c.wanted) + len(ch.added) - len(ch.removed); n > c.most && len(ch.added) > 0 {
		return ch, fmt.Errorf("service %s: the gates have room for %d services, this would be number %d: "+
			"raise --services of daemons and controller (sizes.services of the chart), or remove some",
			ch.added[0].key, c.most, n)
	}
	return ch, c.checkAddresses(ch, next, gone)
}

// checkAddresses returns an error if a service of a plan would have the address and port of another one.
func (c *catalog) checkAddresses(ch changes, next map[runtime.Key]*wanted, gone map[runtime.Key]bool) error {
	taken := map[netip.AddrPort]runtime.Key{}
	for _, w := range slices.Concat(ch.added, ch.changed) {
		other, clash := taken[w.addr]
		if !clash {
			if other, clash = c.holders[w.addr]; clash {
				moves := next[other] != nil && next[other].addr != w.addr
				clash = other != w.key && !gone[other] && !moves
			}
		}
		if clash {
			return fmt.Errorf("service %s: service address %v is already that of service %s: choose another address or port",
				w.key, w.addr, other)
		}
		taken[w.addr] = w.key
	}
	return nil
}

// commit takes over a plan.
func (c *catalog) commit(ch changes) {
	for _, k := range ch.removed {
		delete(c.holders, c.wanted[k].addr)
		delete(c.wanted, k)
	}
	for _, w := range ch.changed {
		delete(c.holders, c.wanted[w.key].addr)
	}
	for _, w := range slices.Concat(ch.added, ch.changed) {
		c.wanted[w.key], c.holders[w.addr] = w, w.key
	}
}

// all returns all services, sorted.
func (c *catalog) all() []*wanted {
	all := make([]*wanted, 0, len(c.wanted))
	for _, w := range c.wanted {
		all = append(all, w)
	}
	slices.SortFunc(all, func(a, b *wanted) int { return compareKeys(a.key, b.key) })
	return all
}

// close refuses further updates.
func (c *catalog) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}
