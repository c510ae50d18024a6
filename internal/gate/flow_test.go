// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// step is a segment of the flow between client and pod 1, and the expected state after it.
type step struct {
	pod       bool // the pod sends it
	flags     string
	seq, ack  uint32
	n         int // bytes of payload
	state     gateFlowState
	open, new uint32
	window    uint16
}

const (
	half   = gateFlowStateFLOW_HALF_OPEN
	estab  = gateFlowStateFLOW_ESTABLISHED
	closed = gateFlowStateFLOW_CLOSED
)

// The client starts with sequence number 1000, the pod with 5000.
var (
	syn       = step{flags: "S", seq: 1000, state: half}
	synack    = step{pod: true, flags: "SA", seq: 5000, ack: 1001, state: half}
	ack       = step{flags: "A", seq: 1001, ack: 5001, state: estab, open: 1, new: 1}
	handshake = []step{syn, synack, ack}
)

// then returns a handshake followed by steps. Steps without a state expect an established flow.
func then(steps ...step) []step {
	out := append([]step(nil), handshake...)
	for _, s := range steps {
		if s.state == 0 {
			s.state = estab
		}
		s.new = 1
		if s.state == estab {
			s.open = 1
		}
		out = append(out, s)
	}
	return out
}

func client1(flags string, seq, ack uint32, n int) step {
	return step{flags: flags, seq: seq, ack: ack, n: n}
}
func pod1(flags string, seq, ack uint32, n int) step {
	return step{pod: true, flags: flags, seq: seq, ack: ack, n: n}
}

// is sets the expected state of a step.
func (s step) is(state gateFlowState) step {
	s.state = state
	return s
}

var conversations = []struct {
	name  string
	steps []step
	bad   map[string]uint64 // counters
}{
	{name: "a request, the client closes first", steps: then(
		client1("PA", 1001, 5001, 100), pod1("A", 5001, 1101, 0), pod1("PA", 5001, 1101, 500), client1("A", 1101, 5501, 0),
		client1("FA", 1101, 5501, 0), pod1("A", 5501, 1102, 0), pod1("FA", 5501, 1102, 0),
		client1("A", 1102, 5502, 0).is(closed))},
	{name: "the pod closes first", steps: then(
		pod1("FA", 5001, 1001, 0), client1("A", 1001, 5002, 0), client1("FA", 1001, 5002, 0),
		pod1("A", 5002, 1002, 0).is(closed))},
	{name: "half-closed stays alive", steps: then(
		client1("FA", 1001, 5001, 0), pod1("A", 5001, 1002, 0), pod1("PA", 5001, 1002, 1000), client1("A", 1002, 6001, 0),
		pod1("PA", 6001, 1002, 1000), client1("A", 1002, 7001, 0), pod1("FA", 7001, 1002, 0),
		client1("A", 1002, 7002, 0).is(closed))},
	{name: "simultaneous close", steps: then(
		client1("FA", 1001, 5001, 0), pod1("FA", 5001, 1001, 0), client1("A", 1002, 5002, 0),
		pod1("A", 5002, 1002, 0).is(closed))},
	{name: "fin with data", steps: then(
		client1("FPA", 1001, 5001, 100), pod1("FPA", 5001, 1102, 200), client1("A", 1102, 5202, 0).is(closed))},
	{name: "fin with the handshake's ack", steps: []step{syn, synack,
		{flags: "FA", seq: 1001, ack: 5001, state: estab, open: 1, new: 1},
		{pod: true, flags: "FA", seq: 5001, ack: 1002, state: estab, open: 1, new: 1},
		{flags: "A", seq: 1002, ack: 5002, state: closed, new: 1}}},
	{name: "fin retransmitted", steps: then(
		client1("FA", 1001, 5001, 0), client1("FA", 1001, 5001, 0), pod1("A", 5001, 1002, 0), client1("FA", 1001, 5001, 0),
		pod1("FA", 5001, 1002, 0), pod1("FA", 5001, 1002, 0), client1("A", 1002, 5002, 0).is(closed),
		pod1("FA", 5001, 1002, 0).is(closed))},
	{name: "fin before its data", steps: then(
		client1("FA", 1101, 5001, 0), client1("PA", 1001, 5001, 100), pod1("A", 5001, 1102, 0), pod1("FA", 5001, 1102, 0),
		client1("A", 1102, 5002, 0).is(closed))},
	{name: "syn-ack lost, syn retransmitted", steps: []step{syn, synack, syn, synack, syn, ack}},
	{name: "syn retransmitted before the syn-ack", steps: []step{syn, syn, syn, synack, ack}},
	{name: "handshake's ack lost, data instead",
		steps: []step{syn, synack, {flags: "PA", seq: 1001, ack: 5001, n: 10, state: estab, open: 1, new: 1}}},
	{name: "handshake's ack forged",
		steps: []step{syn, synack, {flags: "A", seq: 1001, ack: 5002, state: half},
			{flags: "A", seq: 1001, ack: 5000, state: half}, ack}},
	{name: "ack before the syn-ack", steps: []step{syn, {flags: "A", seq: 1001, ack: 1, state: half}, synack, ack}},
	{name: "syn-ack that acknowledges something else",
		steps: []step{syn, {pod: true, flags: "SA", seq: 7000, ack: 1002, state: half},
			{pod: true, flags: "SA", seq: 7000, ack: 1000, state: half}, synack, ack},
		bad: map[string]uint64{"out_of_window": 2}},
	{name: "syn cookies: another sequence number each time",
		steps: []step{syn, synack, {pod: true, flags: "SA", seq: 9000, ack: 1001, state: half},
			{flags: "A", seq: 1001, ack: 9001, state: estab, open: 1, new: 1},
			{pod: true, flags: "PA", seq: 9001, ack: 1001, n: 10, state: estab, open: 1, new: 1}}},
	{name: "syn cookies: the client got the first",
		steps: []step{syn, synack, {pod: true, flags: "SA", seq: 9000, ack: 1001, state: half},
			{flags: "PA", seq: 1001, ack: 5001, n: 50, state: half}, {pod: true, flags: "A", seq: 5001, ack: 1051, state: half},
			{pod: true, flags: "PA", seq: 5001, ack: 1051, n: 10, state: estab, open: 1, new: 1},
			{flags: "FA", seq: 1051, ack: 5011, state: estab, open: 1, new: 1},
			{pod: true, flags: "FA", seq: 5011, ack: 1052, state: estab, open: 1, new: 1},
			{flags: "A", seq: 1052, ack: 5012, state: closed, new: 1}}},
	{name: "a challenge ack of the pod is no handshake",
		steps: []step{syn, synack, {pod: true, flags: "A", seq: 5001, ack: 1001, state: half}}},
	{name: "fast open: data before the handshake's ack",
		steps: []step{{flags: "S", seq: 1000, n: 20, state: half},
			{pod: true, flags: "SA", seq: 5000, ack: 1021, state: half},
			{pod: true, flags: "PA", seq: 5001, ack: 1021, n: 30, state: estab, open: 1, new: 1},
			{flags: "A", seq: 1021, ack: 5031, state: estab, open: 1, new: 1},
			{flags: "FA", seq: 1021, ack: 5031, state: estab, open: 1, new: 1},
			{pod: true, flags: "FA", seq: 5031, ack: 1022, state: estab, open: 1, new: 1},
			{flags: "A", seq: 1022, ack: 5032, state: closed, new: 1}}},
	{name: "fast open refused: data not acknowledged",
		steps: []step{{flags: "S", seq: 1000, n: 20, state: half}, synack, ack}},

	{name: "rst of the client", steps: then(client1("R", 1001, 0, 0).is(closed))},
	{name: "rst of the client after data in flight",
		steps: then(client1("PA", 1001, 5001, 100), client1("R", 1101, 0, 0).is(closed))},
	{name: "rst of the pod", steps: then(pod1("R", 5001, 0, 0).is(closed))},
	{name: "rst with ack of the pod", steps: then(client1("PA", 1001, 5001, 100), pod1("RA", 5001, 1101, 0).is(closed))},
	{name: "forged rst in the window",
		steps: then(client1("R", 1002, 0, 0), client1("R", 1000, 0, 0), client1("R", 1001+64240, 0, 0),
			pod1("R", 5002, 0, 0)), bad: map[string]uint64{"bad_rst": 4}},
	{name: "forged rst outside the window", steps: then(client1("R", 900000000, 0, 0), client1("RA", 0, 5001, 0)),
		bad: map[string]uint64{"bad_rst": 2}},
	{name: "rst of the pod refuses the syn",
		steps: []step{syn, {pod: true, flags: "RA", seq: 0, ack: 1001, state: closed}}},
	{name: "rst of the pod refuses the syn with data",
		steps: []step{{flags: "S", seq: 1000, n: 5, state: half},
			{pod: true, flags: "RA", seq: 0, ack: 1006, state: closed}}},
	{name: "rst of the pod after its syn-ack",
		steps: []step{syn, synack, {pod: true, flags: "R", seq: 5001, state: closed}}},
	{name: "rst of the pod to a forged ack",
		steps: []step{syn, synack, {flags: "A", seq: 1001, ack: 777, state: half},
			{pod: true, flags: "R", seq: 777, state: half}, ack}, bad: map[string]uint64{"bad_rst": 1}},
	{name: "rst of the client to the syn-ack", steps: []step{syn, synack, {flags: "R", seq: 1001, state: closed}}},
	{name: "forged rst to a half-open flow",
		steps: []step{syn, synack, {flags: "R", seq: 1002, state: half}, {flags: "R", seq: 0, state: half}, ack},
		bad:   map[string]uint64{"bad_rst": 2}},

	{name: "forged fins close nothing",
		steps: then(client1("FA", 1001+70000, 5001, 0), client1("FA", 900000000, 5001, 0), client1("FA", 1001, 9999999, 0),
			client1("FA", 1001, 3000000000, 0),
			pod1("FA", 5001, 1001, 0), client1("A", 1001, 5002, 0), client1("PA", 1001, 5002, 10), pod1("A", 5002, 1011, 0)),
		bad: map[string]uint64{"out_of_window": 4}},
	{name: "forged fin in the window, then data",
		steps: then(client1("FA", 1050, 5001, 0), pod1("FA", 5001, 1001, 0), client1("A", 1001, 5002, 0),
			client1("PA", 1001, 5002, 100), pod1("A", 5002, 1101, 0), client1("PA", 1101, 5002, 100), pod1("A", 5002, 1201, 0),
			client1("FA", 1201, 5002, 0), pod1("A", 5002, 1202, 0).is(closed))},
	{name: "forged fin with an acknowledged number",
		steps: then(client1("PA", 1001, 5001, 500), pod1("A", 5001, 1501, 0), client1("FA", 1200, 5001, 0),
			client1("FA", 1500, 5001, 0),
			pod1("FA", 5001, 1501, 0), client1("A", 1501, 5002, 0), client1("PA", 1501, 5002, 10), pod1("A", 5002, 1511, 0))},
	{name: "forged fin with the last acknowledged number",
		steps: then(client1("PA", 1001, 5001, 500), pod1("A", 5001, 1501, 0), client1("FA", 1500, 5001, 0),
			pod1("FA", 5001, 1501, 0), client1("A", 1501, 5002, 0), client1("PA", 1501, 5002, 10), pod1("A", 5002, 1511, 0))},
	{name: "forged fin after the real one",
		steps: then(client1("FA", 1001, 5001, 0), client1("FA", 1500, 5001, 0), pod1("A", 5001, 1002, 0),
			client1("FA", 1600, 5001, 0), pod1("FA", 5001, 1002, 0), client1("A", 1002, 5002, 0).is(closed))},
	{name: "forged data after the real fin",
		steps: then(client1("FA", 1001, 5001, 0), pod1("A", 5001, 1002, 0), client1("PA", 1500, 5001, 10),
			pod1("FA", 5001, 1002, 0), client1("A", 1002, 5002, 0).is(closed))},
	{name: "forged syn to an established flow", steps: then(client1("S", 777, 0, 0), client1("S", 1000, 0, 0)),
		bad: map[string]uint64{"out_of_window": 2}},
	{name: "the pod has lost the connection and accepts a new one", steps: then(
		client1("PA", 1001, 5001, 100), pod1("FA", 5001, 1101, 0),
		client1("S", 90000, 0, 0), pod1("SA", 3000000, 90001, 0), pod1("SA", 3000000, 90001, 0),
		client1("A", 90001, 3000001, 0), client1("PA", 90001, 3000001, 100), pod1("PA", 3000001, 90101, 10),
		client1("FA", 90101, 3000011, 0), pod1("FA", 3000011, 90102, 0), client1("A", 90102, 3000012, 0).is(closed)),
		bad: map[string]uint64{"out_of_window": 2}},
	{name: "the client did not want the new connection", steps: then(
		client1("S", 90000, 0, 0), pod1("SA", 3000000, 90001, 0), client1("R", 90001, 0, 0).is(closed)),
		bad: map[string]uint64{"out_of_window": 1}},
	{name: "a syn-ack to another syn starts nothing anew", steps: then(
		pod1("SA", 3000000, 90001, 0), client1("S", 90000, 0, 0), pod1("A", 5001, 1001, 0), pod1("SA", 3000000, 80001, 0),
		client1("PA", 1001, 5001, 100), client1("R", 1101, 0, 0).is(closed)),
		bad: map[string]uint64{"out_of_window": 3}},
	{name: "a window probe and a keepalive",
		steps: then(client1("A", 1000, 5001, 0), pod1("A", 5001, 1001, 0), client1("A", 1000, 5001, 1))},
	{name: "data outside the window",
		steps: then(client1("PA", 1001+64240, 5001, 100), client1("PA", 3000000000, 5001, 1)),
		bad:   map[string]uint64{"out_of_window": 2}},
}

// play runs steps and checks the state and the counts after each.
func (w *world) play(steps []step) {
	w.Helper()
	for i, s := range steps {
		g, on := w.fromClient(s.flags, s.seq, s.ack, make([]byte, s.n)...), onNIC
		if s.pod {
			g, on = w.fromPod(1, s.flags, s.seq, s.ack, make([]byte, s.n)...), onPod1
		}
		if s.window != 0 {
			g.window = s.window
		}
		w.wantRun(on, g.frame(), tcxRedirect)
		f, _ := w.flow(client, vip)
		wantHalf := uint32(0)
		if s.state == half {
			wantHalf = 1
		}
		open, halfOpen, flows := w.counts(vip, 1)
		if f.State != s.state || open != s.open || halfOpen != wantHalf || flows != uint64(s.new) {
			w.Fatalf("step %d %+v: state %d, open %d, half-open %d, new %d; want %d, %d, %d, %d", i, s, f.State, open, halfOpen,
				flows, s.state, s.open, wantHalf, s.new)
		}
	}
}

func TestConversationsAreTracked(t *testing.T) {
	all := newWorld(t, nil)
	for _, c := range conversations {
		t.Run(c.name, func(t *testing.T) {
			w := all.in(t)
			w.warm(vip, 1)
			w.answered(1)
			w.before = w.counters()
			w.play(c.steps)
			got := w.counted()
			for name, n := range c.bad {
				if got[name] != n {
					t.Errorf("counted %d %s, want %d", got[name], name, n)
				}
				delete(got, name)
			}
			if len(got) > 0 {
				t.Errorf("also counted %v", got)
			}
			// A recount agrees.
			if s, err := w.g.Sweep(hours()); err != nil || s.Fixed != 0 || s.Flows != 1 {
				t.Errorf("sweep: %+v, %v", s, err)
			}
		})
	}
}

// The same conversations, with sequence numbers that wrap around.
func TestConversationsAreTrackedAcrossWrapAround(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1)
	for _, c := range conversations {
		for _, shift := range []uint32{^uint32(999), ^uint32(1000), ^uint32(1049), ^uint32(5000), ^uint32(5399),
			1<<31 - 1001} {
			w.forgetFlows()
			steps := append([]step(nil), c.steps...)
			for i := range steps {
				steps[i].seq += shift
				steps[i].ack += shift
			}
			t.Logf("%s by %d", c.name, shift)
			w.play(steps)
		}
	}
}

// See RFC 7323, 2.2.
func TestWindowScaleAppliesOnlyIfBothOfferIt(t *testing.T) {
	all := newWorld(t, nil)
	for _, c := range []struct {
		name        string
		client, pod bool   // offers 7
		reach       uint32 // how far the client may send
	}{{"both", true, true, 60000 << 7}, {"the client only", true, false, 60000}, {"the pod only", false, true, 60000},
		{"neither", false, false, 60000}} {
		t.Run(c.name, func(t *testing.T) {
			w := all.in(t)
			w.warm(vip, 1)
			s, a := w.syn(1000), w.fromPod(1, "SA", 5000, 1001)
			if !c.client {
				s.options = nil
			}
			if c.pod {
				a.options = synOptions
			}
			w.wantRun(onNIC, s.frame(), tcxRedirect)
			w.wantRun(onPod1, a.frame(), tcxRedirect)
			w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
			first := w.fromPod(1, "A", 5001, 1001)
			first.window = 60000
			w.wantRun(onPod1, first.frame(), tcxRedirect)
			// The SYN-ACK's own window of 64,240 is unscaled.
			reach := max(c.reach, 64240)
			w.before = w.counters()
			w.wantRun(onNIC, w.fromClient("PA", 1001+reach-10, 5001, make([]byte, 10)...).frame(), tcxRedirect)
			if got := w.counted(); len(got) != 0 {
				t.Errorf("the window's last bytes: %v", got)
			}
			w.wantRun(onNIC, w.fromClient("PA", 1001+reach+1, 5001, make([]byte, 10)...).frame(), tcxRedirect)
			if got := w.counted(); got["out_of_window"] != 1 {
				t.Errorf("bytes after the window: %v", got)
			}
		})
	}
}

// A client's segments may be followed on two processors at once. Whichever of the two ends last, the later one counts.
func TestNumbersOnlyMoveForwardOnTwoProcessors(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("only run by machines with two processors")
	}
	w := newWorld(t, nil)
	w.warm(vip, 1)
	w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect)
	answer := w.fromPod(1, "SA", 5000, 1001)
	answer.options = synOptions
	w.wantRun(onPod1, answer.frame(), tcxRedirect)
	first := w.fromClient("A", 1001, 5001)
	first.window = 1
	w.wantRun(onNIC, first.frame(), tcxRedirect)
	const rounds = 20000
	var begun, ended atomic.Uint32
	var wrong int
	var running sync.WaitGroup
	for cpu := range uint32(2) {
		running.Go(func() {
			defer begun.Add(2 * rounds) // an error ends the other one, too
			defer ended.Add(2 * rounds)
			err := inNamespace(w.ns, func() error {
				for round := range uint32(rounds) {
					n := 2*round + cpu + 1 // the segment of the second processor is the later one
					s := w.fromClient("PA", 1000+n, 5001, 0)
					s.window = uint16(1 + n)
					r := w.prepare(onNIC, s.frame(), 1)
					for begun.Add(1); begun.Load() < 2*(round+1); {
					}
					if err := r.run(); err != nil {
						return err
					}
					for ended.Add(1); ended.Load() < 2*(round+1); {
					}
					if cpu == 0 {
						continue
					}
					f, _ := w.flow(client, vip)
					// The window of the SYN is larger than the first ones, which are scaled by 7.
					seq, edge := 1001+n, max(5001+64240, 5001+(1+n)<<7)
					if f.Seq[0] == seq && f.Edge[0] == edge {
						continue
					}
					if wrong++; wrong == 1 {
						t.Logf("round %d: seq %d, edge %d; want %d, %d", round, f.Seq[0], f.Edge[0], seq, edge)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if wrong > 0 {
		t.Errorf("in %d of %d rounds, the earlier segment undid the later one", wrong, rounds)
	}
}

// The new flow may go to another pod. A SYN on a flow that is not closing starts none.
func TestSYNOnAClosingFlowStartsANewFlow(t *testing.T) {
	all := newWorld(t, nil)
	for _, c := range []struct {
		name  string
		steps []step
		seq   uint32 // of the new SYN
		reuse bool
	}{
		{"closed", then(client1("FA", 1001, 5001, 0), pod1("FA", 5001, 1002, 0), client1("A", 1002, 5002, 0).is(closed)),
			70000, true},
		{"closed, same sequence number", then(client1("R", 1001, 0, 0).is(closed)), 1000, true},
		{"both have sent fin", then(client1("FA", 1001, 5001, 0), pod1("FA", 5001, 1002, 0)), 70000, true},
		{"not answered, another sequence number", []step{syn}, 70000, true},
		{"half-open, another sequence number", []step{syn, synack}, 70000, false},
		{"half-open, the same one", []step{syn, synack}, 1000, false},
		{"established", then(), 70000, false},
		{"half-closed", then(client1("FA", 1001, 5001, 0), pod1("A", 5001, 1002, 0)), 70000, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := all.in(t)
			w.warm(vip, 1)
			w.play(c.steps)
			// From now on, another pod takes new flows.
			w.addPod(vip, 2)
			w.serve(vip, 2)
			w.must(w.g.Drain(vip, 1))
			to := podOf(t, w.wantRun(onNIC, w.syn(c.seq).frame(), tcxRedirect))
			if c.reuse != (to == 2) {
				t.Fatalf("went to pod %d", to)
			}
			o1, h1, _ := w.counts(vip, 1)
			o2, h2, _ := w.counts(vip, 2)
			if c.reuse && (o1 != 0 || h1 != 0 || o2 != 0 || h2 != 1) || !c.reuse && (o1+h1 != 1 || o2 != 0 || h2 != 0) {
				t.Errorf("pod 1: %d open, %d half-open; pod 2: %d, %d", o1, h1, o2, h2)
			}
			if !c.reuse {
				return
			}
			// Stragglers of the old pod do not belong to the new flow.
			w.wantRun(onPod1, w.fromPod(1, "FA", 5001, 1002).frame(), tcxNext)
			w.wantRun(onPod2, w.fromPod(2, "SA", 90000, c.seq+1).frame(), tcxRedirect)
			w.wantRun(onNIC, w.fromClient("A", c.seq+1, 90001).frame(), tcxRedirect)
			if o, h, n := w.counts(vip, 2); o != 1 || h != 0 || n != 1 {
				t.Errorf("new flow: %d open, %d half-open, %d new", o, h, n)
			}
		})
	}
}

// A SYN with another number, from anyone who knows the client's port, takes no flow over that a pod has accepted: the
// pod judges it, and the client's handshake ends as if it had not come.
func TestASecondSYNDoesNotTakeAFlowOver(t *testing.T) {
	all := newWorld(t, nil)
	begin := func(t *testing.T) (w *world, pod int) {
		w = all.in(t)
		w.warm(vip, 1, 2, 3)
		pod = podOf(t, w.wantRun(onNIC, w.syn(1000).frame(), tcxRedirect))
		w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "SA", 5000, 1001).frame(), tcxRedirect)
		if got := podOf(t, w.wantRun(onNIC, w.syn(99).frame(), tcxRedirect)); got != pod {
			t.Fatalf("the second SYN went to pod %d, the first to pod %d", got, pod)
		}
		return w, pod
	}
	t.Run("forged", func(t *testing.T) {
		w, pod := begin(t)
		w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "A", 5001, 1001).frame(), tcxRedirect) // RFC 5961
		if got := podOf(t, w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)); got != pod {
			t.Errorf("the client's ACK went to pod %d, its SYN to pod %d", got, pod)
		}
		if f, _ := w.flow(client, vip); f.State != estab || f.Isn != 1000 {
			t.Errorf("flow %+v", f)
		}
	})
	t.Run("of the client, which does not know the first", func(t *testing.T) {
		w, pod := begin(t)
		w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "A", 5001, 1001).frame(), tcxRedirect)
		w.wantRun(onNIC, w.fromClient("R", 1001, 0).frame(), tcxRedirect)
		w.wantRun(onNIC, w.syn(99).frame(), tcxRedirect)
		if f, _ := w.flow(client, vip); f.State != half || f.Isn != 99 {
			t.Errorf("flow %+v", f)
		}
	})
	t.Run("of the client, after the pod gave up", func(t *testing.T) {
		w, pod := begin(t)
		w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "SA", 7000, 100).frame(), tcxRedirect)
		w.wantRun(onNIC, w.fromClient("A", 100, 7001).frame(), tcxRedirect)
		if f, _ := w.flow(client, vip); f.State != estab || f.Isn != 99 {
			t.Errorf("flow %+v", f)
		}
	})
}

// A draining pod gets none.
func TestNewFlowsGoToThePodWithFewest(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1, 2, 3)
	count := map[int]int{}
	dial := func(port uint16) int {
		s := w.syn(1000)
		s.from = netip.AddrPortFrom(client.Addr(), port)
		i := podOf(t, w.wantRun(onNIC, s.frame(), tcxRedirect))
		// Retransmitted, it goes to the same pod and is counted once.
		for range 3 {
			if again := podOf(t, w.wantRun(onNIC, s.frame(), tcxRedirect)); again != i {
				t.Fatalf("the retransmitted SYN went to pod %d instead of %d", again, i)
			}
		}
		count[i]++
		return i
	}
	for i := range uint16(31) {
		dial(41000 + i)
		low, high := 1<<30, 0
		for p := 1; p <= 3; p++ {
			low, high = min(low, count[p]), max(high, count[p])
			if _, h, _ := w.counts(vip, p); int(h) != count[p] {
				t.Fatalf("pod %d has %d half-open flows, want %d", p, h, count[p])
			}
		}
		if high-low > 1 {
			t.Fatalf("flows differ by %d", high-low)
		}
	}
	w.must(w.g.Drain(vip, 2))
	before := count[2]
	for i := range uint16(10) {
		dial(42000 + i)
	}
	if count[2] != before {
		t.Errorf("a draining pod got %d flows", count[2]-before)
	}
	// Its flows continue.
	if _, h, _ := w.counts(vip, 2); int(h) != before {
		t.Errorf("it has %d flows, want %d", h, before)
	}
}

// The next SYN goes to another pod, and nothing counts for a new pod that has got the same index.
func TestRemovedPodsFlowsAreReset(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	w.addPod(vip, 2)
	w.serve(vip, 2)
	w.must(w.g.RemovePod(vip, 1))
	w.addPod(vip, 3) // takes the free index
	w.serve(vip, 3)
	data := w.fromClient("PA", 1001, 5001, 1, 2, 3)
	resetTo(t, data, w.wantRun(onNIC, data.frame(), tcxRedirect))
	if _, ok := w.flow(client, vip); ok {
		t.Error("the flow remains")
	}
	w.wantRun(onPod1, podData(w).frame(), tcxNext)
	if i := podOf(t, w.wantRun(onNIC, w.syn(90000).frame(), tcxRedirect)); i == 1 {
		t.Error("a new SYN went to the removed pod")
	}
	o2, h2, _ := w.counts(vip, 2)
	o3, h3, _ := w.counts(vip, 3)
	if o2+o3 != 0 || h2+h3 != 1 {
		t.Errorf("pod 2: %d, %d; pod 3: %d, %d", o2, h2, o3, h3)
	}
	// Sweep removes flows of removed pods as well.
	w.must(w.g.RemovePod(vip, 2))
	w.must(w.g.RemovePod(vip, 3))
	if s, err := w.g.Sweep(DefaultAges()); err != nil || s.Flows != 0 {
		t.Errorf("sweep: %+v, %v", s, err)
	}
}

// Counts stay right without being corrected.
func TestSweepRemovesOldFlows(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []step
		ages  Ages
	}{
		{"half-open", []step{syn, synack}, Ages{0, time.Hour, time.Hour, time.Hour}},
		{"closed", then(client1("R", 1001, 0, 0).is(closed)), Ages{time.Hour, 0, time.Hour, time.Hour}},
		{"established", then(), Ages{time.Hour, time.Hour, time.Hour, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.warm(vip, 1)
			w.play(c.steps)
			if s, err := w.g.Sweep(hours()); err != nil || s != (Swept{Flows: 1}) {
				t.Errorf("nothing is old: %+v, %v", s, err)
			}
			time.Sleep(10 * time.Millisecond) // the flow's clock has a resolution of up to 4 ms
			if s, err := w.g.Sweep(c.ages); err != nil || s != (Swept{}) {
				t.Errorf("%+v, %v; want nothing left", s, err)
			}
			if o, h, _ := w.counts(vip, 1); o != 0 || h != 0 {
				t.Errorf("%d open, %d half-open", o, h)
			}
		})
	}
}

func TestSweepCorrectsCounts(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	i, _ := w.g.podTable.index(vip, 1)
	w.g.pods.at(i).Open, w.g.pods.at(i).HalfOpen = 7, 0xffffffff
	s, err := w.g.Sweep(DefaultAges())
	if err != nil || s.Fixed != 1 || s.Flows != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	w.wantCounts(1, 0, 1)
}

// No old flow is evicted.
func TestFullFlowTableRefusesNewFlows(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Flows = 8; c.Sizes.Ring = 64 })
	w.warm(vip, 1)
	var full int
	for i := range 12 {
		s := w.syn(1000)
		s.from = netip.AddrPortFrom(client.Addr(), uint16(41000+i))
		if v, _ := w.run(onNIC, s.frame()); v == tcxDrop {
			full++
		}
	}
	if _, h, _ := w.counts(vip, 1); full != 4 || h != 8 || w.counted()["flows_full"] != 4 {
		t.Errorf("%d dropped, %d half-open, counted %v", full, h, w.counted())
	}
}

// Half-open and closed flows are bounded; established ones stay.
func TestRingsEvictTheOldestShortLivedFlows(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Ring = 4 })
	w.warm(vip, 1)
	from := func(i int) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), uint16(41000+i)) }
	send := func(i int, flags string, seq, ack uint32) {
		t.Helper()
		s := w.fromClient(flags, seq, ack)
		s.from = from(i)
		w.wantRun(onNIC, s.frame(), tcxRedirect)
	}
	reply := func(i int, flags string, seq, ack uint32) {
		t.Helper()
		s := w.fromPod(1, flags, seq, ack)
		s.to = from(i)
		w.wantRun(onPod1, s.frame(), tcxRedirect)
	}
	open := func(i int) {
		t.Helper()
		send(i, "S", 1000, 0)
		reply(i, "SA", 5000, 1001)
		send(i, "A", 1001, 5001)
	}
	// Established flows.
	for i := range 6 {
		open(i)
	}
	w.wantCounts(6, 0, 6)
	// Half-open flows, none young: the last four stay.
	for i := 10; i < 20; i++ {
		send(i, "S", 1000, 0)
		w.createdAt(1)
	}
	w.wantCounts(6, 4, 6)
	if got := w.counted()["evicted"]; got != 6 {
		t.Errorf("%d evicted, want 6", got)
	}
	for i := 10; i < 20; i++ {
		if _, there := w.flow(from(i), vip); there != (i >= 16) {
			t.Errorf("half-open flow %d exists: %v", i, there)
		}
	}
	// A flow that is established meanwhile stays.
	reply(19, "SA", 5000, 1001)
	send(19, "A", 1001, 5001)
	w.wantCounts(7, 3, 7)
	for i := 20; i < 30; i++ {
		send(i, "S", 1000, 0)
		w.createdAt(1)
	}
	w.wantCounts(7, 4, 7)
	if _, there := w.flow(from(19), vip); !there {
		t.Error("an established flow was evicted")
	}
	// Closed flows: the last four stay.
	for i := range 6 {
		send(i, "R", 1001, 0)
	}
	w.wantCounts(1, 4, 7)
	for i := range 6 {
		if _, there := w.flow(from(i), vip); there != (i >= 2) {
			t.Errorf("closed flow %d exists: %v", i, there)
		}
	}
	// A flow that starts anew is not evicted for the closed one on its ports.
	open(5)
	for i := range 6 {
		open(30 + i)
		send(30+i, "R", 1001, 0)
	}
	if f, _ := w.flow(from(5), vip); f.State != estab {
		t.Errorf("a flow that started anew has state %d", f.State)
	}
	if s, err := w.g.Sweep(hours()); err != nil || s.Fixed != 0 {
		t.Errorf("sweep: %+v, %v", s, err)
	}
	// Nor is one whose position in the other ring was the same.
	rewind := func() {
		t.Helper()
		for ring := range w.g.objs.RingHeads.MaxEntries() {
			w.must(w.g.objs.RingHeads.Put(ring, uint64(1000)))
		}
	}
	open(50)
	rewind()
	send(50, "R", 1001, 0)
	rewind()
	send(50, "S", 70000, 0)
	pod := w.podIndex(1)
	for i := range 4 {
		w.must(w.g.objs.Flows.Put(flowKey(from(60+i), vip),
			gateFlow{State: estab, Pod: pod, Generation: w.g.pods.at(pod).Generation,
				Seq: [2]uint32{1001, 5001}, Ack: [2]uint32{5001, 1001}}))
		send(60+i, "R", 1001, 0)
	}
	if f, there := w.flow(from(50), vip); !there || f.State != half {
		t.Errorf("the half-open flow exists: %v, state %d", there, f.State)
	}
}

// Only segments that the client can have sent change the way of replies.
func TestRepliesFollowTheClientsRouter(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	other := w.fromClient("PA", 1001+900000, 5001, 1)
	other.src = []byte{2, 0, 0, 0, 0xee, 1}
	w.wantRun(onNIC, other.frame(), tcxRedirect)
	if out := w.wantRun(onPod1, podData(w).frame(), tcxRedirect); [6]byte(out) != [6]byte(clientMAC) {
		t.Errorf("after a forged segment, replies go to %x", out[:6])
	}
	other.seq = 1001
	w.wantRun(onNIC, other.frame(), tcxRedirect)
	if out := w.wantRun(onPod1, podData(w).frame(), tcxRedirect); [6]byte(out) != [6]byte(other.src) {
		t.Errorf("after a segment by another router, replies go to %x", out[:6])
	}
}

func TestTrafficIsCountedPerPod(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	w.wantRun(onPod1, podData(w).frame(), tcxRedirect)
	w.wantRun(onNIC, dataFrame(w), tcxRedirect)
	c, err := w.g.PodCounters(vip, 1)
	w.must(err)
	// SYN 60, ACK 40, data 45; SYN-ACK 60, data 50: IP bytes.
	if c.PacketsIn != 3 || c.BytesIn != 60+40+45 || c.PacketsOut != 2 || c.BytesOut != 60+50 || c.LastPacket == 0 ||
		c.FirstSYNACK == 0 || c.FirstByte < c.FirstSYNACK {
		t.Errorf("%+v", c)
	}
}

// together runs two functions n times on two goroutines, each time as simultaneously as possible.
func together(n int, prepare func(side, i int) func()) {
	var wg sync.WaitGroup
	var turn [2]atomic.Int64
	for side := range turn {
		meet := func() {
			now := turn[side].Add(1)
			for spin := 0; turn[1-side].Load() < now; spin++ {
				if spin > 1000 { // the other goroutine has no CPU
					runtime.Gosched()
				}
			}
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range n {
				run := prepare(side, i)
				meet()
				run()
				meet()
			}
		}()
	}
	wg.Wait()
}

// The same SYNs arrive on several CPUs at once, on free and on reused 5-tuples. Each flow has one pod and is counted
// once.
func TestConcurrentSYNsOpenOneFlow(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Flows = 4096 })
	w.warm(vip, 1, 2, 3)
	const ports, rounds, senders = 400, 10, 2
	for round := range rounds {
		var took [senders][ports]int // pod that got a sender's SYN, by port
		together(ports, func(s, p int) func() {
			f, on := w.syn(uint32(1000*(round+1))).fromOther(1, uint16(2000+p)).frame(), []program{onNIC, onLocal}[s]
			return func() {
				if verdict, out := w.run(on, f); verdict == tcxRedirect {
					took[s][p] = podOf(t, out)
				}
			}
		})
		var half [4]uint32
		for p := range ports {
			f, ok := w.flow(netip.AddrPortFrom(netip.MustParseAddr("10.46.200.1"), uint16(2000+p)), vip)
			if !ok || f.Isn != uint32(1000*(round+1)) {
				t.Fatalf("round %d: flow %d exists: %v, ISN %d", round, p, ok, f.Isn)
			}
			pod := podOfIndex(w, f.Pod)
			half[pod]++
			for s := range senders {
				if took[s][p] != 0 && took[s][p] != pod {
					t.Errorf("round %d: flow %d belongs to pod %d, but one of its SYNs went to pod %d", round, p, pod, took[s][p])
				}
			}
		}
		for p := 1; p <= 3; p++ {
			if o, h, _ := w.counts(vip, p); h != half[p] || o != 0 {
				t.Errorf("round %d: pod %d: %d half-open and %d open counted, want %d half-open", round, p, h, o, half[p])
			}
		}
	}
}

func podOfIndex(w *world, index uint32) int {
	w.Helper()
	for p := 1; p <= 3; p++ {
		if i, _ := w.g.podTable.index(vip, uint64(p)); i == index {
			return p
		}
	}
	w.Fatalf("no pod has index %d", index)
	return 0
}

// manyClients returns client i of connectMany.
func manyClients(i int) netip.AddrPort { return netip.AddrPortFrom(client.Addr(), uint16(2000+i)) }

// connectMany has n clients connect to vip and pod 1. in and out return frames of client i and of the pod to it, which
// next send 1001 and 5001.
func connectMany(t *testing.T, n int) (
	w *world, in func(i int, flags string, seq, ack uint32) []byte,
	out func(i int, flags string, seq, ack uint32, data ...byte) []byte,
) {
	t.Helper()
	w = newWorld(t, func(c *Config) { c.Sizes.Flows = 4096 })
	w.warm(vip, 1)
	in = func(i int, flags string, seq, ack uint32) []byte {
		s := w.fromClient(flags, seq, ack)
		s.from = manyClients(i)
		return s.frame()
	}
	out = func(i int, flags string, seq, ack uint32, data ...byte) []byte {
		s := w.fromPod(1, flags, seq, ack, data...)
		s.to = manyClients(i)
		return s.frame()
	}
	for i := range n {
		w.run(onNIC, in(i, "S", 1000, 0))
		w.run(onPod1, out(i, "SA", 5000, 1001))
		w.run(onNIC, in(i, "A", 1001, 5001))
	}
	return w, in, out
}

// Both last ACKs arrive on two CPUs at once. The flow is closed and counted as such.
func TestConcurrentLastACKsCloseTheFlow(t *testing.T) {
	const flows = 1500
	w, in, out := connectMany(t, flows)
	var acks [2][][]byte
	for i := range flows {
		acks[0], acks[1] = append(acks[0], in(i, "A", 1002, 5002)), append(acks[1], out(i, "A", 5002, 1002))
	}
	w.wantCounts(flows, 0, flows)
	// Simultaneous FINs, then simultaneous ACKs.
	for _, frames := range [][2]func(i int) []byte{
		{func(i int) []byte { return in(i, "FA", 1001, 5001) }, func(i int) []byte { return out(i, "FA", 5001, 1001) }},
		{func(i int) []byte { return acks[0][i] }, func(i int) []byte { return acks[1][i] }},
	} {
		together(flows, func(side, i int) func() {
			f, on := frames[side](i), []program{onNIC, onPod1}[side]
			return func() { w.run(on, f) }
		})
	}
	w.wantCounts(0, 0, flows)
}

// The last data of a pod and its FIN are followed on two CPUs at once: a program that writes and an ACK that arrives
// may each have a part sent.
func TestConcurrentDataAndFINCloseTheFlow(t *testing.T) {
	const flows = 1500
	w, in, out := connectMany(t, flows)
	together(flows, func(side, i int) func() {
		f := out(i, "PA", 5001, 1001, make([]byte, 100)...)
		if side == 1 {
			f = out(i, "FA", 5101, 1001)
		}
		return func() { w.run(onPod1, f) }
	})
	overtaken := 0
	for i := range flows {
		if f, ok := w.flow(manyClients(i), vip); !ok || f.Seq[1] != 5102 {
			overtaken++
		}
		w.run(onNIC, in(i, "FA", 1001, 5102))
		w.run(onPod1, out(i, "A", 5102, 1002))
	}
	t.Logf("%d of %d FINs were overtaken", overtaken, flows)
	w.wantCounts(0, 0, flows)
}

// Two CPUs follow the last data of a pod and its FIN at once, and the one with the data is the last to set how far the
// pod has come. The acknowledgment of the FIN, which comes only once, counts all the same.
func TestFINThatWasOvertakenByDataClosesTheFlow(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1)
	w.run(onNIC, w.syn(1000).frame())
	w.run(onPod1, w.fromPod(1, "SA", 5000, 1001).frame())
	w.run(onNIC, w.fromClient("A", 1001, 5001).frame())
	w.run(onPod1, w.fromPod(1, "PA", 5001, 1001, make([]byte, 100)...).frame())
	w.run(onPod1, w.fromPod(1, "FA", 5101, 1001).frame())
	f, ok := w.flow(client, vip)
	if !ok || f.Seq[1] != 5102 {
		t.Fatalf("%+v, %v", f, ok)
	}
	f.Seq[1] = 5101
	w.must(w.g.objs.Flows.Put(flowKey(client, vip), f))
	w.run(onNIC, w.fromClient("A", 1001, 9999).frame()) // nobody has sent that
	w.wantCounts(1, 0, 1)
	w.run(onNIC, w.fromClient("FA", 1001, 5102).frame())
	w.run(onPod1, w.fromPod(1, "A", 5102, 1002).frame())
	w.wantCounts(0, 0, 1)
}

// Handshakes complete while their ring evicts flows.
func TestEvictionRacesKeepCountsRight(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Ring = 8; c.Sizes.Flows = 4096 })
	w.warm(vip, 1)
	var wg sync.WaitGroup
	for s := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 500 {
				syn := w.syn(1000).fromOther(byte(s), uint16(2000+i))
				w.run(onNIC, syn.frame())
				answer := w.fromPod(1, "SA", 5000, 1001)
				answer.to = syn.from
				w.run(onPod1, answer.frame())
				ack := w.fromClient("A", 1001, 5001)
				ack.from = syn.from
				w.run(onNIC, ack.frame())
				if i%2 == 0 {
					rst := w.fromClient("R", 1001, 0)
					rst.from = syn.from
					w.run(onNIC, rst.frame())
				}
			}
		}()
	}
	wg.Wait()
	s, err := w.g.Sweep(hours())
	if err != nil || s.Fixed != 0 {
		o, h, n := w.counts(vip, 1)
		t.Errorf("%d open, %d half-open, %d new before a sweep that found %+v, %v", o, h, n, s, err)
	}
}
