// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
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
