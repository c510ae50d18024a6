// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
)

// addressAnnounced is ADDRESS_ANNOUNCED of bpf/types.h.
const addressAnnounced = 1

// announcements says for which VIPs ARP is answered.
type announcements struct {
	all  bool
	vips map[netip.Addr]bool // if not all
}

func (a *announcements) has(vip netip.Addr) bool { return a.all || a.vips[vip] }

// Announce says for which VIPs this node answers ARP requests on its external interfaces: all, or those named. It
// tells the link of those for which it did not answer before (gratuitous ARP, RFC 5227, 3). Pings and packets that
// come for other VIPs are answered all the same. Before the first call, a gate with Config.EncapPort answers for
// those VIPs only for which an earlier process did, and one without it for all. Names that are no VIPs are kept until
// they are.
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
		is, err := g.announceVIP(vip)
		errs = append(errs, err)
		if is {
			fresh = append(fresh, vip)
		}
	}
	g.tellLink(fresh)
	return errors.Join(errs...)
}

// AnnounceVIP is Announce for one VIP, and leaves the others as they are. Of a gate that answers for all VIPs nothing
// changes.
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
	fresh, err := g.announceVIP(vip)
	if fresh {
		g.tellLink([]netip.Addr{vip})
	}
	return err
}

// announceVIP writes whether ARP is answered for a VIP. It tells whether it was not before, and is now.
func (g *Gate) announceVIP(vip netip.Addr) (fresh bool, err error) {
	var was, is uint32
	err = g.objs.Addresses.Lookup(toAddr(vip), &was)
	known := err == nil
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, fmt.Errorf("VIP %v: asking the gate: %w", vip, err)
	}
	if g.services.announced.has(vip) {
		is = addressAnnounced
	}
	if known && was == is {
		return false, nil
	}
	if err := g.objs.Addresses.Put(toAddr(vip), is); err != nil {
		return false, fmt.Errorf("VIP %v: telling the gate: %w", vip, err)
	}
	return is != 0, nil
}

// addVIP makes a new VIP known. g.services is locked.
func (g *Gate) addVIP(vip netip.Addr) error {
	if !g.inRange(vip) {
		if err := g.dev.route(netip.PrefixFrom(vip, 32)); err != nil {
			return err
		}
		if err := g.tellOutside(); err != nil {
			return err
		}
	}
	fresh, err := g.announceVIP(vip)
	if fresh {
		g.tellLink([]netip.Addr{vip})
	}
	return err
}

// removeVIP is the reverse of addVIP.
func (g *Gate) removeVIP(vip netip.Addr) error {
	if err := g.objs.Addresses.Delete(toAddr(vip)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	if g.inRange(vip) {
		return nil
	}
	return errors.Join(g.dev.unroute(netip.PrefixFrom(vip, 32)), g.tellOutside())
}

// announceAgain are the times after which the link is told once more: a frame may be lost.
var announceAgain = []time.Duration{200 * time.Millisecond, time.Second}

// tellLink sends gratuitous ARP for VIPs by all external interfaces.
func (g *Gate) tellLink(vips []netip.Addr) {
	if len(vips) == 0 || len(g.nicMACs) == 0 {
		return
	}
	g.sendAnnouncements(vips)
	g.announcing.Go(func() {
		for _, d := range announceAgain {
			select {
			case <-g.closing:
				return
			case <-time.After(d):
			}
			g.services.mu.Lock()
			// Another node may have become the owner meanwhile.
			mine := slices.DeleteFunc(slices.Clone(vips), func(v netip.Addr) bool { return !g.services.announced.has(v) || g.services.vips[v] == 0 })
			g.services.mu.Unlock()
			g.sendAnnouncements(mine)
		}
	})
}

func (g *Gate) sendAnnouncements(vips []netip.Addr) {
	for ifindex, mac := range g.nicMACs {
		for _, vip := range vips {
			if err := g.inject.send(ifindex, announcement(mac, vip)); err != nil {
				g.log.Warn("the link cannot be told of a VIP", "vip", vip, "interface", ifindex, "error", err)
			}
		}
	}
}

// announcement is the frame of an ARP announcement (RFC 5227, 2.3): a request for the sender's own address.
func announcement(mac net.HardwareAddr, vip netip.Addr) []byte {
	f := make([]byte, 0, 42)
	f = append(f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	f = append(f, mac...)
	f = binary.BigEndian.AppendUint16(f, 0x0806) // ARP
	f = append(f, 0, 1, 8, 0, 6, 4, 0, 1)        // Ethernet, IPv4, lengths of addresses, request
	f = append(f, mac...)
	f = append(f, vip.AsSlice()...)
	f = append(f, make([]byte, 6)...)
	return append(f, vip.AsSlice()...)
}
