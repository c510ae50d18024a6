// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// Announce sets the VIPs for which this node answers ARP requests on its external interfaces: all, or the listed ones.
// It announces new ones to the link (gratuitous ARP; RFC 5227, 3). Pings and other packets to the remaining VIPs are
// handled regardless. A listed address that is no VIP yet takes effect once it is one. Before the first call, a gate
// with Config.EncapPort answers for the same VIPs as an earlier process, and a gate without it for all VIPs.
func (g *Gate) Announce(all bool, vips []netip.Addr) error {
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	t.announced = announcements{all, make(map[netip.Addr]bool, len(vips))}
	for _, vip := range vips {
		t.announced.vips[vip] = true
	}
	var fresh []netip.Addr
	var errs []error
	for vip := range t.vips {
		isNew, err := g.writeAnnounced(vip)
		errs = append(errs, err)
		if isNew {
			fresh = append(fresh, vip)
		}
	}
	g.announceToLink(fresh)
	return errors.Join(errs...)
}

// AnnounceVIP is like Announce for one VIP, and leaves the others as they are. It has no effect on a gate that answers
// for all VIPs.
func (g *Gate) AnnounceVIP(vip netip.Addr, announce bool) error {
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.announced.all:
		return nil
	case announce:
		t.announced.vips[vip] = true
	default:
		delete(t.announced.vips, vip)
	}
	if t.vips[vip] == 0 {
		return nil
	}
	fresh, err := g.writeAnnounced(vip)
	if fresh {
		g.announceToLink([]netip.Addr{vip})
	}
	return err
}

// adoptAnnouncements takes over the VIPs for which an earlier process answered.
func (g *Gate) adoptAnnouncements() error {
	a := &g.services.announced
	a.vips = map[netip.Addr]bool{}
	if a.all = g.cfg.EncapPort == 0; a.all {
		return nil
	}
	var vip gateAddr
	var flags uint32
	it := g.objs.Addresses.Iterate()
	for it.Next(&vip, &flags) {
		if flags&uint32(gateAddressFlagADDRESS_ANNOUNCED) != 0 {
			a.vips[fromAddr(vip)] = true
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("reading the gate's VIPs: %w", err)
	}
	return nil
}

// writeAnnounced writes to the map whether ARP requests for a VIP are answered, and adds the VIP to it if necessary.
// fresh says that they are answered now and were not before.
func (g *Gate) writeAnnounced(vip netip.Addr) (fresh bool, err error) {
	var was, is uint32
	err = g.objs.Addresses.Lookup(toAddr(vip), &was)
	known := err == nil
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("VIP %v: reading the gate's map: %w", vip, err)
	}
	if g.services.announced.has(vip) {
		is = uint32(gateAddressFlagADDRESS_ANNOUNCED)
	}
	if known && was == is {
		return false, nil
	}
	if err := g.objs.Addresses.Put(toAddr(vip), is); err != nil {
		return false, fmt.Errorf("VIP %v: writing the gate's map: %w", vip, err)
	}
	return is != 0, nil
}

// holdVIP counts one more service address with a VIP, and adds the VIP with the first one. The caller holds
// services.mu.
func (g *Gate) holdVIP(vip netip.Addr) error {
	t := &g.services
	if t.vips[vip]++; t.vips[vip] > 1 {
		return nil
	}
	if err := g.addVIP(vip); err != nil {
		return fmt.Errorf("adding its VIP: %w", err)
	}
	return nil
}

// releaseVIP reverses holdVIP.
func (g *Gate) releaseVIP(vip netip.Addr) error {
	t := &g.services
	if t.vips[vip]--; t.vips[vip] > 0 {
		return nil
	}
	delete(t.vips, vip)
	if err := g.removeVIP(vip); err != nil {
		return fmt.Errorf("removing its VIP from the gate: %w", err)
	}
	return nil
}

// addVIP adds a VIP. The caller holds services.mu.
func (g *Gate) addVIP(vip netip.Addr) error {
	if !g.cfg.inRange(vip) {
		if err := g.dev.route(netip.PrefixFrom(vip, 32)); err != nil {
			return err
		}
		if err := g.writeOutside(); err != nil {
			return err
		}
	}
	fresh, err := g.writeAnnounced(vip)
	if fresh {
		g.announceToLink([]netip.Addr{vip})
	}
	return err
}

// removeVIP reverses addVIP.
func (g *Gate) removeVIP(vip netip.Addr) error {
	err := errors.Join(ignoreMissing(g.objs.Addresses.Delete(toAddr(vip))),
		ignoreMissing(g.objs.VipEdges.Delete(toAddr(vip))))
	if err != nil {
		return err
	}
	if g.cfg.inRange(vip) {
		return nil
	}
	return errors.Join(g.dev.unroute(netip.PrefixFrom(vip, 32)), g.writeOutside())
}

// wantedRoutes returns the service ranges and the VIPs outside them, which wangell0 is the route of. The caller holds
// services.mu, or is Open.
func (g *Gate) wantedRoutes() (wanted []netip.Prefix) {
	for _, p := range g.cfg.ServiceRanges {
		wanted = append(wanted, p.Masked())
	}
	for vip := range g.services.vips {
		if !g.cfg.inRange(vip) {
			wanted = append(wanted, netip.PrefixFrom(vip, 32))
		}
	}
	return wanted
}

// syncRoutes makes wangell0 the route of exactly the wanted prefixes.
func (g *Gate) syncRoutes() error {
	if err := g.dev.setRoutes(g.wantedRoutes()); err != nil {
		return err
	}
	return g.writeOutside()
}

// writeOutside sets whether the programs must look for VIPs outside all service ranges.
func (g *Gate) writeOutside() error {
	var some uint32
	for vip := range g.services.vips {
		if !g.cfg.inRange(vip) {
			some = 1
		}
	}
	if err := g.objs.VipsOutsideRanges.Set(some); err != nil {
		return fmt.Errorf("setting whether VIPs are outside all service ranges: %w", err)
	}
	return nil
}

// announceToLink sends ARP announcements for VIPs on all external interfaces, and repeats them. The caller holds
// services.mu.
func (g *Gate) announceToLink(vips []netip.Addr) {
	if len(vips) == 0 || len(g.nics.macs()) == 0 {
		return
	}
	g.sendAnnouncements(vips)
	r := &g.services.repeats
	idle := r.empty()
	r.push(0, vips, time.Now())
	if idle {
		g.announcing.Go(g.repeatAnnouncements)
	}
}

// repeatAnnouncements repeats announcements until none is left.
func (g *Gate) repeatAnnouncements() {
	for {
		due, next := g.takeRepeats(time.Now())
		g.sendAnnouncements(due)
		if next.IsZero() {
			return
		}
		select {
		case <-g.closing:
			return
		case <-time.After(max(time.Until(next), repeatTogether)):
		}
	}
}

// takeRepeats returns the VIPs to announce again now, except VIPs that have been removed or have moved to another node.
// next is when the next ones are due; the zero time if none is left.
func (g *Gate) takeRepeats(now time.Time) (due []netip.Addr, next time.Time) {
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	due = slices.DeleteFunc(t.repeats.take(now), func(v netip.Addr) bool { return !t.announced.has(v) || t.vips[v] == 0 })
	return due, t.repeats.next()
}

// announceAll announces all VIPs for which this node answers: the link has another MAC address for them, or none.
func (g *Gate) announceAll() {
	t := &g.services
	t.mu.Lock()
	defer t.mu.Unlock()
	var vips []netip.Addr
	for vip := range t.vips {
		if t.announced.has(vip) {
			vips = append(vips, vip)
		}
	}
	g.announceToLink(vips)
}

func (g *Gate) sendAnnouncements(vips []netip.Addr) {
	for ifindex, mac := range g.nics.macs() {
		for _, vip := range vips {
			if err := g.inject.send(ifindex, arpAnnouncement(mac, vip)); err != nil {
				g.log.Warn("cannot announce a VIP to the link", "vip", vip, "interface", ifindex, "error", err)
			}
		}
	}
}

// announceAgain are the pauses before an announcement is repeated, as a frame may be lost.
var announceAgain = [...]time.Duration{200 * time.Millisecond, time.Second}

// repeatTogether is how long a due announcement may wait for others, so that many VIPs cost few wake-ups.
const repeatTogether = 10 * time.Millisecond

// repeats queues the announcements to send again. Thousands of VIPs may be announced at once, so they share one
// goroutine.
type repeats struct {
	queues [len(announceAgain)][]repeat // by pause; what is due first comes first
}

// repeat is the next announcement of a VIP.
type repeat struct {
	vip netip.Addr
	due time.Time
}

// push notes that VIPs have been announced, for the n-th time not counting the first one.
func (r *repeats) push(n int, vips []netip.Addr, now time.Time) {
	for _, vip := range vips {
		r.queues[n] = append(r.queues[n], repeat{vip, now.Add(announceAgain[n])})
	}
}

// empty reports whether nothing is left to repeat.
func (r *repeats) empty() bool { return r.next().IsZero() }

// next returns when the next announcement is due, or the zero time if none is left.
func (r *repeats) next() (next time.Time) {
	for _, q := range r.queues {
		if len(q) > 0 && (next.IsZero() || q[0].due.Before(next)) {
			next = q[0].due
		}
	}
	return next
}

// take returns the VIPs whose announcement is due.
func (r *repeats) take(now time.Time) (due []netip.Addr) {
	// From the last pause to the first, so that what is pushed is not taken again.
	for n := len(r.queues) - 1; n >= 0; n-- {
		first := len(due)
		for len(r.queues[n]) > 0 && !r.queues[n][0].due.After(now) {
			due = append(due, r.queues[n][0].vip)
			r.queues[n] = r.queues[n][1:]
		}
		if len(r.queues[n]) == 0 {
			r.queues[n] = nil // releases the array
		}
		if n+1 < len(r.queues) {
			r.push(n+1, due[first:], now)
		}
	}
	return due
}
