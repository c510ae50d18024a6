// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
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
