// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// age makes a flow older, as if it had been silent.
func (w *world) age(from, to netip.AddrPort, by time.Duration) {
	w.Helper()
	f, ok := w.flow(from, to)
	if !ok {
		w.Fatalf("no flow from %v to %v", from, to)
	}
	f.Last -= uint64(by)
	w.must(w.g.objs.Flows.Put(flowKey(from, to), f))
}

// hours returns ages that no flow of a test reaches by itself.
func hours() Ages { return Ages{time.Hour, time.Hour, time.Hour, time.Hour} }

func TestAgesShortenAsTheTableFills(t *testing.T) {
	for _, c := range []struct {
		fill float64
		want Ages
	}{
		{0, DefaultAges()},
		{0.75, DefaultAges()},
		{0.85, Ages{45 * time.Second, 10 * time.Second, 135 * time.Second, 67 * time.Minute}},
		{0.95, shortestAges()},
		{1, shortestAges()},
	} {
		got := AgesAt(c.fill)
		for _, d := range []struct{ got, want time.Duration }{{got.HalfOpen, c.want.HalfOpen}, {got.Closed, c.want.Closed},
			{got.HalfClosed, c.want.HalfClosed}, {got.Established, c.want.Established}} {
			if (d.got - d.want).Abs() > time.Millisecond {
				t.Errorf("at %v: %+v, want %+v", c.fill, got, c.want)
				break
			}
		}
	}
}

// A client that has vanished counts as open until its flow is old, and no longer.
func TestDeadFlowsGo(t *testing.T) {
	all := newWorld(t, nil)
	minutes := func(n int) time.Duration { return time.Duration(n) * time.Minute }
	for _, c := range []struct {
		name   string
		steps  []step
		stays  time.Duration // after this silence the flow is still there
		silent time.Duration // and after this one it is not
	}{
		{"idle for as long as RFC 5382 says", then(), minutes(123), minutes(125)},
		{"the pod has sent FIN, nobody answers", then(pod1("FA", 5001, 1001, 0)), minutes(3), minutes(5)},
		{"the client has sent FIN and is gone", then(client1("FA", 1001, 5001, 0), pod1("A", 5001, 1002, 0)),
			minutes(3), minutes(5)},
		{"both have sent FIN, the last ACK is missing",
			then(client1("FA", 1001, 5001, 0), pod1("FA", 5001, 1002, 0)), minutes(1), minutes(2)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := all.in(t)
			w.warm(vip, 1)
			w.play(c.steps)
			w.age(client, vip, c.stays)
			if s, err := w.g.Sweep(DefaultAges()); err != nil || s.Flows != 1 {
				t.Errorf("after %v: %+v, %v", c.stays, s, err)
			}
			w.wantCounts(1, 0, 1)
			w.age(client, vip, c.silent-c.stays)
			if s, err := w.g.Sweep(DefaultAges()); err != nil || s != (Swept{}) {
				t.Errorf("after %v: %+v, %v; want nothing left", c.silent, s, err)
			}
			w.wantCounts(0, 0, 1)
		})
	}
}

// Only what the client has sent, or the pod has sent of its own accord, keeps a flow from aging.
func TestOnlyGenuineSegmentsKeepAFlow(t *testing.T) {
	all := newWorld(t, nil)
	for _, c := range []struct {
		name string
		step step
		kept bool
	}{
		{"data", client1("PA", 1001, 5001, 10), true},
		{"keep-alive", client1("A", 1000, 5001, 0), true},
		{"data of the pod", pod1("PA", 5001, 1001, 10), true},
		{"fin of the pod", pod1("FA", 5001, 1001, 0), true},
		{"challenge ack of the pod", pod1("A", 5001, 1001, 0), false},
		{"forged ack", client1("A", 3000000000, 5001, 0), false},
		{"forged data", client1("PA", 1001, 3000000000, 10), false},
		{"forged rst", client1("R", 1002, 0, 0), false},
		{"forged syn", client1("S", 777, 0, 0), false},
		{"no ack", client1("P", 1001, 0, 10), false},
		{"fin without ack", client1("F", 1001, 0, 0), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := all.in(t)
			connected(w)
			w.age(client, vip, 2*time.Hour)
			g, on := w.fromClient(c.step.flags, c.step.seq, c.step.ack, make([]byte, c.step.n)...), onNIC
			if c.step.pod {
				g, on = w.fromPod(1, c.step.flags, c.step.seq, c.step.ack, make([]byte, c.step.n)...), onPod1
			}
			w.wantRun(on, g.frame(), tcxRedirect)
			want := Swept{}
			if c.kept {
				want.Flows = 1
			}
			if s, err := w.g.Sweep(hours()); err != nil || s != want {
				t.Errorf("%+v, %v; want %+v", s, err, want)
			}
		})
	}
}

// connectFrom establishes a flow from an address to vip and pod 1, if the gate lets its SYN pass.
func (w *world) connectFrom(from netip.AddrPort) bool {
	w.Helper()
	send := func(flags string, seq, ack uint32) bool {
		s := w.fromClient(flags, seq, ack)
		s.from = from
		v, _ := w.run(onNIC, s.frame())
		return v == tcxRedirect
	}
	if !send("S", 1000, 0) {
		return false
	}
	s := w.fromPod(1, "SA", 5000, 1001)
	s.to = from
	w.wantRun(onPod1, s.frame(), tcxRedirect)
	return send("A", 1001, 5001)
}

// resetFrom ends a flow of connectFrom.
func (w *world) resetFrom(from netip.AddrPort) {
	w.Helper()
	s := w.fromClient("R", 1001, 0)
	s.from = from
	w.wantRun(onNIC, s.frame(), tcxRedirect)
}

func clientPort(addr string, port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port))
}

func TestOneClientGetsNoMoreThanItsShare(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Flows, c.Sizes.FlowsPerSource = 64, 10 })
	w.warm(vip, 1)
	for i := range 10 {
		if !w.connectFrom(clientPort("10.46.200.10", 1000+i)) {
			t.Fatalf("connection %d was refused", i)
		}
	}
	if w.connectFrom(clientPort("10.46.200.10", 2000)) || w.counted()["source_full"] != 1 {
		t.Errorf("a connection beyond the share passed; counted %v", w.counted())
	}
	if !w.connectFrom(clientPort("10.46.200.11", 2000)) {
		t.Error("another client was refused")
	}
	w.resetFrom(clientPort("10.46.200.10", 1000))
	if !w.connectFrom(clientPort("10.46.200.10", 2000)) {
		t.Error("refused although a flow has ended")
	}
	s, err := w.g.Sweep(hours())
	if err != nil || s.Fixed != 0 {
		t.Errorf("the counts drift: %+v, %v", s, err)
	}
	u := w.g.FlowUsage(s)
	want := []Fill{
		{Table: "flows", Flag: "--flows", Used: 12, Size: 64},
		{Table: "flows_per_source", Flag: "--max-flows-per-source", Used: 10, Size: 10,
			Source: netip.MustParsePrefix("10.46.200.10/32")},
		{Table: "flows_per_service", Flag: "--max-flows-per-service", Service: vip, Used: 11, Size: 48},
	}
	if !slices.Equal(u, want) {
		t.Errorf("usage %+v, want %+v", u, want)
	}
	if a, b := u[1].Of(), u[2].Of(); a != "client 10.46.200.10" || b != "service address "+vip.String() {
		t.Errorf("of %q and %q", a, b)
	}
}

func TestOneServiceGetsNoMoreThanItsShare(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Flows, c.Sizes.FlowsPerService = 64, 10 })
	w.warm(vip, 1)
	for i := range 10 {
		if !w.connectFrom(clientPort("10.46.200.10", 1000+i)) {
			t.Fatalf("connection %d was refused", i)
		}
	}
	if w.connectFrom(clientPort("10.46.200.11", 1000)) || w.counted()["service_full"] != 1 {
		t.Errorf("a connection beyond the share passed; counted %v", w.counted())
	}
	other := netip.MustParseAddrPort("10.46.100.6:80")
	w.warm(other, 2)
	s := w.syn(1000)
	s.to = other
	w.wantRun(onNIC, s.frame(), tcxRedirect)
	// Its pods' flows end with them.
	w.must(w.g.RemovePod(vip, 1))
	w.addPod(vip, 3)
	w.serve(vip, 3)
	if s, err := w.g.Sweep(hours()); err != nil || s.Fixed != 0 || s.Flows != 1 {
		t.Errorf("sweep: %+v, %v", s, err)
	}
	w.wantRun(onNIC, w.syn(70000).frame(), tcxRedirect)
}

// A count that is wrong for any reason is corrected, so that no client is locked out.
func TestSweepCorrectsShares(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	i, _ := w.g.services.index(vip)
	w.g.serviceShares.at(i).Open = 9999999
	w.g.sourceShares.at(7).Open = 5
	if s, err := w.g.Sweep(hours()); err != nil || s.Fixed != 2 {
		t.Errorf("%+v, %v; want 2 corrected", s, err)
	}
	if n, m := w.g.serviceShares.at(i).Open, w.g.sourceShares.at(7).Open; n != 1 || m != 0 {
		t.Errorf("%d flows of the service and %d of the source, want 1 and 0", n, m)
	}
}

func TestEvictChoosesTheLongestSilent(t *testing.T) {
	unit := func(n int) time.Duration { return time.Duration(n) * idleUnit }
	for _, c := range []struct {
		idle   []uint32
		excess uint32
		want   eviction
	}{
		{[]uint32{50, 20, 30, 5}, 5, eviction{unit(4), unit(3), 5}},
		{[]uint32{50, 20, 30, 5}, 6, eviction{unit(3), unit(2), 1}},
		{[]uint32{50, 20, 30, 5}, 36, eviction{unit(2), unit(1), 1}},
		{[]uint32{50, 20, 30, 5}, 500, eviction{unit(2), unit(1), 465}}, // those of the last minute stay
		{[]uint32{50, 20, 30, 5}, 0, eviction{unit(4), unit(3), 0}},
	} {
		if got := evict(c.idle, c.excess); got != c.want {
			t.Errorf("%v, %d: %+v, want %+v", c.idle, c.excess, got, c.want)
		}
	}
}

// A full table makes room: flows that have begun to end go first, then those that were silent for longest.
func TestSweepMakesRoomInAFullTable(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Flows, c.Sizes.FlowsPerSource = 100, 100; c.Sizes.FlowsPerService = 100 })
	w.warm(vip, 1)
	port := func(i int) netip.AddrPort { return clientPort("10.46.200.10", 1000+i) }
	for i := range 100 {
		if !w.connectFrom(port(i)) {
			t.Fatalf("connection %d was refused", i)
		}
		w.age(port(i), vip, time.Duration(i)*idleUnit/2)
	}
	left := func() (gone []int) {
		for i := range 100 {
			if _, there := w.flow(port(i), vip); !there {
				gone = append(gone, i)
			}
		}
		return gone
	}
	if s, err := w.g.Sweep(DefaultAges()); err != nil || s.Flows != 90 || s.Evicted != 10 || s.Fixed != 0 {
		t.Fatalf("%+v, %v; want 10 evicted", s, err)
	}
	if gone := left(); len(gone) != 10 || slices.Min(gone) < 89 {
		t.Errorf("not the longest silent ones are gone: %v", gone)
	}
	w.wantCounts(90, 0, 100)
	if n := w.counted()["idle_evicted"]; n == 0 || n > 10 {
		t.Errorf("%d counted as evicted", n)
	}
	// Fill it again. Those of the first clients have begun to end.
	for i := 90; i < 100; i++ {
		w.connectFrom(port(i))
	}
	for i := range 12 {
		s := w.fromPod(1, "FA", 5001, 1001)
		s.to = port(i)
		w.wantRun(onPod1, s.frame(), tcxRedirect)
		w.age(port(i), vip, time.Minute)
	}
	if s, err := w.g.Sweep(DefaultAges()); err != nil || s.Flows != 88 || s.Evicted != 12 || s.Fixed != 0 {
		t.Fatalf("%+v, %v; want 12 evicted", s, err)
	}
	if gone := left(); len(gone) != 12 || slices.Max(gone) != 11 {
		t.Errorf("not those that have begun to end are gone: %v", gone)
	}
}
