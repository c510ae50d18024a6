// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/safchain/ethtool"

	"wangell.loutres.me/test/testutil/delay"
	"wangell.loutres.me/test/testutil/forge"
)

var (
	forgedSYNs = flag.Int("forged.syns", 50_000, "forged SYNs at cold services before genuine clients come")
	forgedRate = flag.Int("forged.rate", 50_000, "forged SYNs a second at cold services")
	forgedAll  = flag.Bool("forged.all", false,
		"each kind of proof in each XDP mode, instead of one of each; clients are to be served in time")
)

const (
	// floodedServices is the number of services that are flooded, and that of those that are not.
	floodedServices = 50
	// distance is the round trip of the clients: long enough that what else takes time here hardly counts.
	distance = 200 * time.Millisecond
	// clientPause is the pause between two clients, which otherwise delay each other.
	clientPause = 10 * time.Millisecond
)

// Forged SYNs at fifty cold services start no pod beyond the budget. A genuine client of each is served after at most
// two round trips more than that of a service which is not attacked. With -forged.all, which wants a machine that does
// nothing else, it is also served no later than two round trips take.
func TestFloodOfColdServicesStartsNothing(t *testing.T) {
	for _, c := range []struct {
		mode  XDPMode
		proof Proof
		short bool // it is part of the short form
	}{
		{XDPOff, ProofAlways, true}, {XDPNative, ProofAuto, true},
		{XDPOff, ProofAuto, false}, {XDPNative, ProofAlways, false}, {XDPGeneric, ProofAlways, false},
	} {
		if c.short || *forgedAll {
			name := map[Proof]string{ProofAlways: "always", ProofAuto: "auto"}[c.proof]
			t.Run(fmt.Sprintf("xdp %s, proof %s", c.mode, name), func(t *testing.T) { floodCold(t, c.mode, c.proof) })
		}
	}
}

func floodCold(t *testing.T, mode XDPMode, proof Proof) {
	// What is attacked arrives by a device of its own, so that what a link loses does not count.
	newNamespace(t, "attacker")
	sh(t, `ip link add eth9 type veth peer name eth0 netns attacker; ip link set eth9 up; ip -n attacker link set eth0 up`)
	t.Cleanup(func() { sh(t, "ip link del eth9") })
	n := newNetworkWith(t, 1500, func(c *Config) {
		c.XDPMode, c.Interfaces = mode, append(c.Interfaces, "eth9")
		c.WakeBudgets = WakeBudgets{Service: Budget{1, 1.0 / 3600}, Parked: 16}
	})
	eth9 := linkByName(t, "eth9").Attrs()
	if mode == XDPNative { // as at a network card; the peer of a veth without XDP drops what it is sent
		n.must(n.g.objs.Nics.Put(uint32(eth9.Index), gateNic{Mac: hardwareAddr(eth9.HardwareAddr), Tx: 1}))
	}
	w := &world{TB: t, g: n.g}
	var all []netip.AddrPort
	for i := range 2 * floodedServices {
		all = append(all, serviceAt(i))
		if i < floodedServices {
			w.proving(all[i], proof)
		} else {
			w.proving(all[i], ProofAuto)
		}
	}
	flooded, calm := all[:floodedServices], all[floodedServices:]
	stop := n.floodBy("attacker", "eth9", flooded)
	budget := uint64(0)
	if proof == ProofAuto {
		budget = 1
		for _, a := range flooded {
			eventually(t, func() error {
				if n.g.ServiceState(a) != Waking {
					return fmt.Errorf("%v: no wake within the budget", a)
				}
				return nil
			})
			n.g.Refuse(a)
		}
	}
	before := w.counters()["challenges"]
	begin := time.Now()
	eventually(t, func() error {
		if got := w.counters()["challenges"] - before; got < uint64(*forgedSYNs) {
			return fmt.Errorf("%d challenges, want %d", got, *forgedSYNs)
		}
		return nil
	})
	t.Logf("%d forged SYNs in %v", *forgedSYNs, time.Since(begin))
	wantWakes := func(services []netip.AddrPort, want uint64, when string) {
		for _, a := range services {
			if c := n.g.ServiceCounters(a); c.Wakes != want {
				t.Errorf("%s: %v was woken %d times, want %d", when, a, c.Wakes, want)
			}
		}
	}
	wantWakes(flooded, budget, "forged SYNs")
	wantWakes(calm, 0, "forged SYNs")
	if c := w.counters(); c["proven"]+c["unproven"] != 0 {
		t.Errorf("counters %v after forged SYNs", c)
	}

	n.serveWoken(all)
	countTrips := roundTrips(t, "client")
	attacked, usual := n.useBoth(flooded, calm)
	trips := countTrips()
	stop()
	for i := range flooded {
		if got, want := trips[flooded[i]], trips[calm[i]]; want == 0 || got > want+2 {
			t.Errorf("client of %v: %d round trips before its first byte; of %v, which is not attacked: %d; want at most 2 more",
				flooded[i], got, calm[i], want)
		}
	}
	t.Logf("round trips before the first byte: usual %d, attacked %d", trips[calm[0]], trips[flooded[0]])
	wantWakes(flooded, budget+1, "genuine clients")
	wantWakes(calm, 1, "genuine clients")
	// How long the k-th fastest may take, for each k: clients are random in what delays them.
	slices.Sort(attacked)
	slices.Sort(usual)
	t.Logf("usual time: %v to %v; attacked: %v to %v", usual[0], usual[len(usual)-1], attacked[0],
		attacked[len(attacked)-1])
	if usual[0] < 2*distance {
		t.Errorf("a client took %v: it is not distant", usual[0])
	}
	for k := range attacked {
		if *forgedAll && attacked[k] > usual[k]+2*distance {
			t.Errorf("client %d of attacked services: served after %v; of others: %v; want at most %v more", k, attacked[k],
				usual[k], 2*distance)
		}
	}
	if c := w.counters(); c["proven"] < floodedServices || c["unproven"] != 0 {
		t.Errorf("counters %v: want %d proofs", c, floodedServices)
	}
}

// floodBy lets forged SYNs for services arrive at a device of the node from a network namespace, until stop is called.
func (n *network) floodBy(ns, device string, services []netip.AddrPort) (stop func()) {
	n.Helper()
	to := linkByName(n, device).Attrs().HardwareAddr
	tool, err := ethtool.NewEthtool()
	n.must(err)
	defer tool.Close()
	n.must(tool.Change(device, map[string]bool{"rx-gro": true})) // frames of XDP programs arrive
	var s *forge.SYNs
	var from net.HardwareAddr
	var answers io.Closer
	n.must(inNamespace(ns, func() (err error) {
		from = linkByName(n, "eth0").Attrs().HardwareAddr
		if answers, err = forge.Absorb("eth0", forgedNet); err != nil {
			return err
		}
		s, err = forge.Open(forge.Config{Device: "eth0", From: from, To: to, Sources: forgedNet, Services: services})
		return err
	}))
	router := forgedNet.Addr().Next()
	sh(n.T, "ip route add %v via %v dev %s onlink; ip neigh replace %v lladdr %v dev %s", forgedNet, router, device,
		router, from, device)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- inNamespace(ns, func() error {
			_, err := s.Send(ctx, math.MaxInt, *forgedRate)
			return err
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, s.Close(), answers.Close()); err != nil {
			n.Error(err)
		}
	})
	n.Cleanup(stop)
	return stop
}

// useBoth has a distant client use each of some services, a pair of them at a time. It returns how long each took.
func (n *network) useBoth(some, others []netip.AddrPort) (tookSome, tookOthers []time.Duration) {
	n.Helper()
	var d *delay.Delay
	to := linkByName(n, "eth0").Attrs().HardwareAddr
	n.must(inNamespace("client", func() (err error) {
		d, err = delay.Open(delay.Config{Device: "eth0", Source: client.Addr(), To: to, Network: serviceRange, By: distance})
		return err
	}))
	defer func() { n.must(d.Close()) }()
	tookSome, tookOthers = make([]time.Duration, len(some)), make([]time.Duration, len(others))
	var group sync.WaitGroup
	use := func(a netip.AddrPort, took *time.Duration) {
		group.Go(func() {
			begin := time.Now()
			if err := <-visit("client", a, 100); err != nil {
				n.Errorf("%v: %v", a, err)
			}
			*took = time.Since(begin)
		})
	}
	for i := range some {
		use(some[i], &tookSome[i])
		use(others[i], &tookOthers[i])
		time.Sleep(clientPause)
	}
	group.Wait()
	return tookSome, tookOthers
}

// serveWoken gives each service a port of pod 1 when it wakes.
func (n *network) serveWoken(services []netip.AddrPort) {
	n.Helper()
	// Forged SYNs reach the pod once its service is awake. Its kernel then forgets SYNs after 3 s, and resets clients
	// that take longer, as those on a busy machine do. With cookies for all it keeps nothing that it could forget.
	sh(n.T, "ip netns exec %s sysctl -qw net.ipv4.tcp_syncookies=2", podNS(1))
	host := linkByName(n, podNS(1)).Attrs()
	var mac net.HardwareAddr
	n.must(inNamespace(podNS(1), func() error { mac = linkByName(n, "eth0").Attrs().HardwareAddr; return nil }))
	for i, a := range services {
		at := netip.AddrPortFrom(podAt[1].Addr(), uint16(9000+i))
		echo(n.T, podNS(1), at)
		n.must(n.g.AddPod(Pod{ID: uint64(100 + i), Service: a, Addr: at, Ifindex: host.Index, MAC: mac,
			HostMAC: host.HardwareAddr}))
	}
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
			for i, a := range services {
				if n.g.ServiceState(a) != Waking {
					continue
				}
				if _, err := n.g.Serve(a, uint64(100+i)); err != nil {
					n.Error(err)
				}
			}
		}
	}()
	n.Cleanup(func() { close(done); <-stopped })
}
