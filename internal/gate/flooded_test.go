// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/safchain/ethtool"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/test/testutil/delay"
	"wangell.loutres.me/test/testutil/forge"
)

// crowd fills the ring of half-open flows of a world whose rings have four slots, with flows that do not age.
func (w *world) crowd() {
	w.Helper()
	w.tick()
	for i := range 4 {
		w.wantRun(onNIC, w.syn(7).fromOther(200, uint16(100+i)).frame(), tcxRedirect)
	}
	w.createdAt(1 << 62)
}

// createdAt changes when all flows began.
func (w *world) createdAt(when uint64) {
	w.Helper()
	var k gateFlowKey
	var f gateFlow
	flows := map[gateFlowKey]gateFlow{}
	it := w.g.objs.Flows.Iterate()
	for it.Next(&k, &f) {
		flows[k] = f
	}
	w.must(it.Err())
	for k, f := range flows {
		f.Created = when
		w.must(w.g.objs.Flows.Put(k, f))
	}
	w.tick()
}

// tick lets the gate look at the rings again before its clock has ticked.
func (w *world) tick() {
	w.Helper()
	for service := range w.g.cfg.Sizes.Services {
		var last uint64
		w.must(w.g.objs.Floods.Lookup(service, &last))
		if last != 0 {
			w.must(w.g.objs.Floods.Put(service, last-1))
		}
	}
}

// forgetSYNs overwrites the records of SYNs that got no entry, as others of the flood do.
func (w *world) forgetSYNs() {
	w.Helper()
	n := int(gateLimitSYN_RECORDS)
	keys, records := make([]uint32, n), make([]gateSynRecord, n)
	var at ebpf.MapBatchCursor
	n, err := w.g.objs.SynRecords.BatchLookup(&at, keys, records, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		w.Fatal(err)
	}
	for i, r := range records[:n] {
		if r.Isn != 0 {
			w.must(w.g.objs.SynRecords.Put(keys[i], gateSynRecord{}))
		}
	}
}

// While half-open flows fill their ring, a SYN gets a pod but no entry, and its client one at the ACK.
func TestHandshakeDuringAFloodNeedsNoEntry(t *testing.T) {
	all := newWorld(t, func(c *Config) { c.Sizes.Ring = 4 })
	all.warm(vip, 1, 2, 3)
	pods := map[int]bool{}
	for i := range 24 {
		lost := i%2 == 1
		w := all
		w.forgetFlows()
		w.crowd()
		half := 0
		for pod := 1; pod <= 3; pod++ {
			_, h, _ := w.counts(vip, pod)
			half += int(h)
		}
		from := netip.AddrPortFrom(client.Addr(), uint16(41000+i))
		syn := w.syn(1000)
		syn.from = from
		pod := podOf(t, w.wantRun(onNIC, syn.frame(), tcxRedirect))
		if again := podOf(t, w.wantRun(onNIC, syn.frame(), tcxRedirect)); again != pod {
			t.Fatalf("client %d: its SYN went to pod %d, again to pod %d", i, pod, again)
		}
		if _, there := w.flow(from, vip); there || half != 4 {
			t.Fatalf("client %d: has an entry: %v; %d half-open flows", i, there, half)
		}
		pods[pod] = true
		on := onPod1 + program(pod-1)
		synack := w.fromPod(pod, "SA", 5000, 1001)
		synack.to, synack.options = from, synOptions
		out := w.wantRun(on, synack.frame(), tcxRedirect)
		if !bytes.Equal(out[:6], clientMAC) || !bytes.Equal(out[12:], w.asSent(synack).frame()[12:]) {
			t.Fatalf("client %d: the SYN-ACK became %x", i, out)
		}
		if lost {
			w.forgetSYNs()
		}
		ack := w.fromClient("A", 1001, 5001)
		ack.from = from
		if got := podOf(t, w.wantRun(onNIC, ack.frame(), tcxRedirect)); got != pod {
			t.Fatalf("client %d: its ACK went to pod %d, its SYN to pod %d", i, got, pod)
		}
		if f, _ := w.flow(from, vip); f.State != estab || f.Isn != 1000 {
			t.Fatalf("client %d: flow %+v", i, f)
		}
		if o, _, n := w.counts(vip, pod); o != 1 || n != 0 {
			t.Errorf("client %d: %d open, %d new before the pod has confirmed the ACK", i, o, n)
		}
		data := w.fromClient("PA", 1001, 5001, 1, 2, 3)
		data.from = from
		w.wantRun(onNIC, data.frame(), tcxRedirect)
		// A pod that knows no such connection ends it.
		rst := w.fromPod(pod, "R", 5001, 0)
		rst.to = from
		w.wantRun(on, rst.frame(), tcxRedirect)
		if o, _, _ := w.counts(vip, pod); o != 0 {
			t.Errorf("client %d: open after the pod's RST", i)
		}
	}
	if len(pods) != 3 {
		t.Errorf("all went to %v", pods)
	}
}

// An ACK of no handshake, which anyone can send, is no use of the service, and neither is what the pod answers to it. A
// connection that the pod confirms is.
func TestForgedACKDuringAFloodIsNoUse(t *testing.T) {
	all := newWorld(t, func(c *Config) { c.Sizes.Ring = 4 })
	enter := func(t *testing.T) *world {
		w := all.in(t)
		w.warm(vip, 1)
		w.crowd()
		w.wantRun(onNIC, w.syn(7).fromOther(201, 1).frame(), tcxRedirect)
		w.wantRun(onNIC, w.fromClient("PA", 1001, 5001, 1).frame(), tcxRedirect)
		w.wantCounts(1, 4, 0)
		return w
	}
	for name, c := range map[string]struct {
		answer segment
		open   uint32
		used   bool
	}{
		"RST":                        {all.fromPod(1, "R", 5001, 0), 0, false},
		"ACK of a SYN that it knows": {all.fromPod(1, "A", 77000, 1001), 1, false},
		"ACK of the connection":      {all.fromPod(1, "A", 5001, 1002), 1, true},
		"data":                       {all.fromPod(1, "PA", 5001, 1002, 1, 2), 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := enter(t)
			w.wantRun(onPod1, c.answer.frame(), tcxRedirect)
			flows := uint64(0)
			if c.used {
				flows = 1
			}
			w.wantCounts(c.open, 4, flows)
			w.wantRun(onNIC, w.fromClient("PA", 1002, 5001, 1).frame(), tcxRedirect)
			if used := w.lastUse() != 0; used != c.used {
				t.Errorf("used: %v, want %v", used, c.used)
			}
		})
	}
}

// A refusal finds its way without an entry, too.
func TestRefusalDuringAFloodReachesTheClient(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Ring = 4 })
	w.warm(vip, 1)
	w.crowd()
	w.wantRun(onNIC, synFrame(w), tcxRedirect)
	refusal := w.fromPod(1, "RA", 0, 1001)
	out := w.wantRun(onPod1, refusal.frame(), tcxRedirect)
	if !bytes.Equal(out[:6], clientMAC) || !bytes.Equal(out[12:], w.asSent(refusal).frame()[12:]) {
		t.Errorf("became %x", out)
	}
}

func TestHalfOpenFlowsKeepTheirSlotsForAWhile(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Ring = 4 })
	w.warm(vip, 1)
	w.crowd()
	w.wantRun(onNIC, synFrame(w), tcxRedirect)
	if _, there := w.flow(client, vip); there {
		t.Error("a SYN got the slot of a young flow")
	}
	w.createdAt(1)
	w.wantRun(onNIC, synFrame(w), tcxRedirect)
	if _, there := w.flow(client, vip); !there || w.counted()["evicted"] != 1 {
		t.Errorf("no entry in place of an old flow, counted %v", w.counted())
	}
	// Without a flood, an ACK of no flow is answered by a RST.
	stray := w.fromClient("A", 1, 2)
	stray.to = vip2
	w.service(vip2, 1, 1)
	resetTo(t, stray, w.wantRun(onNIC, stray.frame(), tcxRedirect))
}

// The same with the pod on another node, at the edge node and at the home node.
func TestHandshakeDuringAFloodAcrossNodes(t *testing.T) {
	all := newRemoteWorld(t, func(c *Config) { c.Sizes.Ring = 4 })
	synack := func(w *world) segment {
		s := w.fromPod(1, "SA", 5000, 1001)
		s.options = synOptions
		return s
	}
	ack := all.fromClient("A", 1001, 5001)
	t.Run("edge", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.crowd()
		for range 2 {
			w.unwrap(w.wantRun(onNIC, synFrame(w), tcxRedirect), toPodType, 0, 1, synFrame(w))
		}
		out := w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, w.asSent(synack(w)).frame()), tcxRedirect)
		if !bytes.Equal(out[:6], clientMAC) || mssOf(t, out) != 1420 {
			t.Errorf("MSS %d, %x", mssOf(t, out), out)
		}
		if _, there := w.flow(client, vip); there {
			t.Error("has an entry before its ACK")
		}
		w.unwrap(w.wantRun(onNIC, ack.frame(), tcxRedirect), toPodType, 0, 1, ack.frame())
		w.wantCounts(1, 4, 0)
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, w.asSent(w.fromPod(1, "PA", 5001, 1001, 1)).frame()),
			tcxRedirect)
		w.wantCounts(1, 4, 1)
	})
	t.Run("edge, record lost", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.crowd()
		w.wantRun(onNIC, synFrame(w), tcxRedirect)
		w.forgetSYNs()
		// It goes by the node's routes.
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, w.asSent(synack(w)).frame()), tcxRedirect)
		// At once: a client that waits for the pod to speak does not repeat it.
		w.unwrap(w.wantRun(onNIC, ack.frame(), tcxRedirect), toPodType, 0, 1, ack.frame())
		w.wantCounts(1, 4, 0)
		if c := w.counted(); c["asked"] != 0 {
			t.Errorf("counted %v", c)
		}
	})
	// The flow may have moved here: what a wrong pod says does not reach the client, and the right one is looked for.
	t.Run("edge, another edge node's flow", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.crowd()
		w.wantRun(onNIC, w.syn(7).fromOther(201, 1).frame(), tcxRedirect)
		data := w.fromClient("PA", 1001, 5001, 1)
		w.unwrap(w.wantRun(onNIC, data.frame(), tcxRedirect), toPodType, 0, 1, data.frame())
		rst := w.asSent(w.fromPod(1, "R", 5001, 0)).frame()
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, closes, 1, rst), tcxDrop)
		if _, there := w.flow(client, vip); there {
			t.Error("the flow is still there")
		}
		w.wantCounts(0, 4, 0)
		asked := func(want uint64) {
			t.Helper()
			if got := w.counted()["asked"]; got != want {
				t.Errorf("asked %d times, want %d", got, want)
			}
		}
		asked(0)
		// No node claims it.
		for round := range uint64(3) {
			w.wantRun(onNIC, data.frame(), tcxDrop)
			asked(round + 1)
			var q gatePendingQuery
			k := flowKey(client, vip)
			w.must(w.g.objs.PendingQueries.Lookup(k, &q))
			q.At -= 1e9
			w.must(w.g.objs.PendingQueries.Put(k, q))
		}
		resetTo(t, data, w.wantRun(onNIC, data.frame(), tcxRedirect))
		asked(3)
	})
	t.Run("edge, a pod resets what it knows", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.crowd()
		w.wantRun(onNIC, synFrame(w), tcxRedirect)
		w.forgetSYNs()
		w.wantRun(onNIC, ack.frame(), tcxRedirect)
		rst := w.asSent(w.fromPod(1, "RA", 5001, 1001)).frame()
		w.wantRun(onNIC, w.wrap(otherNode, toClientType, closes, 1, rst), tcxRedirect)
	})
	crowdedHome := func(t *testing.T) *world {
		w := all.in(t)
		w.service(vip, 100, 100)
		w.addPod(vip, 1)
		w.tick()
		for i := range 4 {
			s := w.syn(7).fromOther(200, uint16(100+i))
			w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, s.frame()), tcxRedirect)
		}
		w.createdAt(1 << 62)
		return w
	}
	t.Run("home, record of the edge lost", func(t *testing.T) {
		w := crowdedHome(t)
		w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), tcxRedirect)
		early := w.fromClient("A", 1002, 5001)
		w.wantRun(onNIC, w.wrap(otherNode, flowQueryType, 0, 0, early.frame()), tcxDrop)
		claim := w.wantRun(onNIC, w.wrap(otherNode, flowQueryType, 0, 0, ack.frame()), tcxRedirect)
		if claim[scalesAt] != 0xee { // the largest of both, as the SYN is not remembered
			t.Errorf("scales %#x", claim[scalesAt])
		}
		claim[scalesAt] = 0
		w.unwrap(claim, flowClaimType, 0, 1, ack.frame())
		w.toPod(1, bare(ack), w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, ack.frame()), tcxRedirect))
		w.wantCounts(1, 4, 0) // until the pod confirms it
		data := w.fromPod(1, "PA", 5001, 1001, 1)
		w.unwrap(w.wantRun(onPod1, bare(data), tcxRedirect), toClientType, 0, 1, bare(data))
		w.wantCounts(1, 4, 1)
	})
	t.Run("home", func(t *testing.T) {
		w := crowdedHome(t)
		if out := w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, synFrame(w)), tcxRedirect); podOf(t, out) != 1 {
			t.Errorf("went to %v", destinationOf(out))
		}
		back := w.unwrap(w.wantRun(onPod1, synack(w).frame(), tcxRedirect), toClientType, 0, 1, synack(w).frame())
		sameButMSS(t, w.asSent(synack(w)).frame(), back)
		if _, there := w.flow(client, vip); there {
			t.Error("has an entry before its ACK")
		}
		w.forgetSYNs() // the edge node has chosen
		w.toPod(1, bare(ack), w.wantRun(onNIC, w.wrap(otherNode, toPodType, 0, 1, ack.frame()), tcxRedirect))
		w.wantCounts(1, 4, 0)
		// The edge node needs the pod's confirmation, too.
		data := w.fromPod(1, "PA", 5001, 1001, 1, 2, 3)
		w.unwrap(w.wantRun(onPod1, bare(data), tcxRedirect), toClientType, 0, 1, bare(data))
		w.wantCounts(1, 4, 1)
		data.seq = 5004
		w.straight(bare(data), w.wantRun(onPod1, bare(data), tcxRedirect))
	})
}

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
	// A client that waits for so long that its kernel repeats the SYN, as on a busy machine, may be admitted for that.
	repeated := uint64(0)
	for _, took := range slices.Concat(attacked, usual) {
		if took > time.Second { // the first repetition (RFC 6298, 2.1)
			repeated++
		}
	}
	if c := w.counters(); c["proven"]+c["unproven"] < floodedServices || c["unproven"] > repeated {
		t.Errorf("counters %v: want %d proofs, as %d clients may have repeated their SYNs", c, floodedServices, repeated)
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

var (
	floodSYNs  = flag.Int("flood.syns", 200_000, "number of forged SYNs of a flood")
	floodRate  = flag.Int("flood.rate", 200_000, "forged SYNs a second at one node")
	floodRate2 = flag.Int("flood.rate-two", 200_000, "forged SYNs a second across two nodes, both of this machine")
	floodLeast = flag.Int("flood.least", 0, "forged SYNs a second that the gate must handle")
	floodRuns  = flag.Int("flood.runs", 1, "number of floods")
)

// lateClients are clients without a kernel of their own, so that they can take their time: each sends the ACK of a
// SYN-ACK after a round-trip time, then a byte, and awaits a byte. Like any TCP, they repeat what is not answered.
type lateClients struct {
	fd            int
	device        int
	from, to      net.HardwareAddr
	mu            sync.Mutex
	waiting       map[netip.AddrPort]chan *layers.TCP
	served, reset atomic.Int64
	starved       atomic.Int64 // reset because they were late themselves: see patience
}

// patience is how long a pod's kernel keeps a SYN for certain: after a second it repeats its SYN-ACK, and forgets the
// SYN if the flood leaves the SYN-ACK no place in a queue (reqsk_timer_handler). Clients whose ACK comes later because
// this machine is too busy to run them are not those that the test is about.
const patience = time.Second

// lateNet has the addresses of late clients, which no host has.
var lateNet = netip.MustParsePrefix("10.46.200.128/25")

// forgedNet has the addresses that forged SYNs come from, which no host has.
var forgedNet = netip.MustParsePrefix("10.47.0.0/16")

// lateHost is the address of one of them.
func lateHost(i int) netip.Addr {
	host := lateNet.Addr().As4()
	host[3] += byte(1 + i)
	return netip.AddrFrom4(host)
}

const lateHosts = 24

// newLateClients opens the clients' device in a network namespace. The nodes get them as neighbors, as they do not
// answer ARP.
func newLateClients(t *testing.T, ns string, to net.HardwareAddr, nodes ...string) *lateClients {
	t.Helper()
	l := &lateClients{to: to, waiting: map[netip.AddrPort]chan *layers.TCP{}}
	base := lateNet.Addr().As4()
	filter, err := bpf.Assemble([]bpf.Instruction{ // what is not for them is dropped before it is queued
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 4},
		bpf.LoadAbsolute{Off: 30, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xffffff80},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(base[:]), SkipTrue: 1},
		bpf.RetConstant{Val: 2048},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		raw[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	err = inNamespace(ns, func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		l.device, l.from = dev.Index, dev.HardwareAddr
		if l.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptSockFprog(l.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
				&unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}),
			unix.SetsockoptTimeval(l.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(l.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: l.device}))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		if err := inNamespace(node, func() error {
			for i := range lateHosts {
				sh(t, "ip neigh replace %v lladdr %v dev eth0", lateHost(i), l.from)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		l.read(stop)
	}()
	t.Cleanup(func() { close(stop); <-done; unix.Close(l.fd) })
	return l
}

// read hands segments to the clients that they are for.
func (l *lateClients) read(stop <-chan struct{}) {
	b := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(l.fd, b, 0)
		select {
		case <-stop:
			return
		default:
		}
		if a, ok := from.(*unix.SockaddrLinklayer); err != nil || ok && a.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		p := gopacket.NewPacket(bytes.Clone(b[:n]), layers.LayerTypeEthernet, gopacket.NoCopy)
		ip, _ := p.NetworkLayer().(*layers.IPv4)
		tcp, _ := p.TransportLayer().(*layers.TCP)
		if ip == nil || tcp == nil {
			continue
		}
		to, _ := netip.AddrFromSlice(ip.DstIP)
		l.mu.Lock()
		c := l.waiting[netip.AddrPortFrom(to, uint16(tcp.DstPort))]
		l.mu.Unlock()
		select {
		case c <- tcp:
		default: // nobody waits for it; what matters is repeated
		}
	}
}

func (l *lateClients) send(s segment) error {
	s.src, s.dst = l.from, l.to
	err := unix.Sendto(l.fd, s.frame(), 0, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: l.device})
	if errors.Is(err, unix.ENOBUFS) {
		return nil // lost, as on any network
	}
	return err
}

// errStarved is returned for a client that was late itself, and reset.
var errStarved = errors.New("this machine was too busy for the client")

// connect makes one connection.
func (l *lateClients) connect(ctx context.Context, from, to netip.AddrPort, isn uint32, rtt time.Duration) error {
	c := make(chan *layers.TCP, 16)
	l.mu.Lock()
	l.waiting[from] = c
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.waiting, from)
		l.mu.Unlock()
	}()
	begun, late := time.Now(), time.Duration(0) // late: by how much longer than it meant to this client has waited
	// exchange sends segments until one fits, again after a time that doubles.
	exchange := func(fits func(*layers.TCP) bool, wait time.Duration, s ...segment) (*layers.TCP, error) {
		for ; ; wait *= 2 {
			sent, again := time.Now(), time.NewTimer(wait)
			defer again.Stop()
			for _, s := range s {
				if err := l.send(s); err != nil {
					return nil, err
				}
			}
			for waits := true; waits; {
				select {
				case got := <-c:
					if got.RST && late > patience/4 && time.Since(begun) > patience {
						return nil, errStarved
					}
					if got.RST {
						l.reset.Add(1)
						return nil, fmt.Errorf("reset: seq %d, ack %d", got.Seq, got.Ack)
					}
					if fits(got) {
						return got, nil
					}
				case <-again.C:
					waits = false
					late += time.Since(sent) - wait
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		}
	}
	syn := segment{from: from, to: to, flags: "S", seq: isn, options: synOptions[:1]}
	synack, err := exchange(func(s *layers.TCP) bool { return s.SYN && s.ACK && s.Ack == isn+1 }, time.Second, syn)
	if err != nil {
		return fmt.Errorf("after the SYN: %w", err)
	}
	answered := time.Now()
	time.Sleep(rtt)
	late += time.Since(answered) - rtt
	ack := segment{from: from, to: to, flags: "A", seq: isn + 1, ack: synack.Seq + 1}
	data := ack
	data.flags, data.payload = "PA", []byte("?")
	if err := l.send(ack); err != nil {
		return err
	}
	timeout := rtt + max(200*time.Millisecond, 2*rtt) // RFC 6298, with Linux's least variance
	answer, err := exchange(func(s *layers.TCP) bool { return len(s.Payload) > 0 }, timeout, data)
	if err != nil {
		return fmt.Errorf("after the ACK: %w", err)
	}
	l.served.Add(1)
	return l.send(segment{from: from, to: to, flags: "RA", seq: isn + 2, ack: answer.Ack})
}

// answerBytes serves the pods of flooded services: a byte for a byte.
func answerBytes(c net.Conn) {
	var b [1]byte
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if n, _ := c.Read(b[:]); n == 1 {
		_, _ = c.Write(b[:])
		_, _ = c.Read(b[:])
	}
}

// flood lets forged SYNs to vip arrive at a node while late clients in a network namespace connect. All must be served.
// perSecond is how many are sent in a second; seen returns how many new SYNs the node's gate has handled.
func flood(t *testing.T, perSecond int, ns string, seen func() uint64, node string, others ...string) {
	t.Helper()
	var s *forge.SYNs
	var late *lateClients
	err := inNamespace(node, func() (err error) {
		mac := linkByName(t, "eth0").Attrs().HardwareAddr
		late = newLateClients(t, ns, mac, append(others, node)...)
		s, err = forge.Open(forge.Config{Device: "eth0", Arrive: true, From: late.from, To: mac,
			Sources: forgedNet, Services: []netip.AddrPort{vip}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var answers io.Closer
	if err := inNamespace(ns, func() (err error) {
		answers, err = forge.Absorb("eth0", forgedNet)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	send := func(n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := inNamespace(node, func() (err error) { n, err = s.Send(ctx, n, perSecond); return err }); err != nil {
			t.Error(err)
		}
	}
	send(8192) // fills the ring
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	over := make(chan struct{})
	var wg sync.WaitGroup
	rtts := []time.Duration{time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond}
	for i := range lateHosts {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; ; n++ {
				from := netip.AddrPortFrom(lateHost(i), uint16(2000+n))
				err := late.connect(ctx, from, vip, uint32(n)*100_000, rtts[i%3])
				if errors.Is(err, errStarved) {
					late.starved.Add(1)
				} else if err != nil {
					t.Errorf("%v, round-trip time %v: %v", from, rtts[i%3], err)
					return
				}
				select {
				case <-over:
					return
				default:
				}
			}
		}()
	}
	before, begin := seen(), time.Now()
	send(*floodSYNs)
	arrived, took := seen()-before, time.Since(begin)
	close(over)
	wg.Wait()
	rate := float64(arrived) / took.Seconds()
	t.Logf("the gate handled %d SYNs, %.0f a second; %d clients served, %d reset, and %d that were late themselves",
		arrived, rate, late.served.Load(), late.reset.Load(), late.starved.Load())
	if arrived < uint64(*floodSYNs) || rate < float64(*floodLeast) {
		t.Errorf("want %d SYNs, at least %d a second", *floodSYNs, *floodLeast)
	}
}

// newSYNs is how many SYNs opened a flow, or got none because of a flood, once the rings are full.
func newSYNs(c map[string]uint64, prefix string) uint64 {
	return c[prefix+"flooded_syns"] + c[prefix+"evicted"]
}

// Clients far away are served during a flood by which their half-open connections could not outlast the ring.
func TestFloodResetsNoGenuineClient(t *testing.T) {
	for range *floodRuns {
		t.Run("one node", func(t *testing.T) {
			n := newNetwork(t, XDPAuto, 1500)
			n.service()
			for i := 1; i <= 2; i++ {
				serveIn(t, podNS(i), podAt[i], answerBytes)
			}
			n.must(n.g.RemovePod(vip2, 2))
			for i := 1; i <= 2; i++ {
				n.addPod(vip, i)
				_, err := n.g.Serve(vip, uint64(i))
				n.must(err)
			}
			flood(t, *floodRate, "client", func() uint64 { return newSYNs(counted(t, n.g), "") }, "")
			if c := counted(t, n.g); c["flooded_syns"] == 0 || c["flows_full"]+c["no_pod"] != 0 {
				t.Errorf("counted %v", c)
			}
		})
		t.Run("two nodes", func(t *testing.T) {
			c := newCluster(t, 1500)
			on := []*node{nil, c.home, c.edge}
			for i := 1; i <= 2; i++ {
				c.podNet(on[i], i, 1500)
				serveIn(t, podNS(i), podAt[i], answerBytes)
				c.addPod(vip, on[i], i)
				c.serve(vip, i)
			}
			flood(t, *floodRate2, "client", func() uint64 { return newSYNs(c.counted(), "edge ") }, c.edge.name, c.home.name)
			if got := c.counted(); got["edge flooded_syns"] == 0 || got["edge flows_full"]+got["edge no_pod"] != 0 {
				t.Errorf("counted %v", got)
			}
		})
	}
}
