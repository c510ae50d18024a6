// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

// inspected makes a daemon answer questions about its gate, each by what answer returns; nil is no answer.
func (d *fakeDaemon) inspected(answer func(*wire.Inspect) wire.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inspect = answer
}

// inspector changes how long answers may take, and how long they are used.
func (w *world) inspector(patience, fresh time.Duration) {
	w.c.loop.call(func() { i := w.c.receiver.inspector; i.patience, i.fresh = patience, fresh })
}

// inspects waits until the state of gates is being asked for, or known, or not any more.
func (w *world) inspects(want bool) {
	w.t.Helper()
	w.until("gates are inspected", func() (is bool) {
		w.c.loop.call(func() { is = w.c.receiver.inspector.gates != nil })
		return is == want
	})
}

func TestGatesOfAllNodesAreAskedForOnceForAll(t *testing.T) {
	w := newWorld(t, nil)
	second := w.daemonOn("n2")
	t.Cleanup(func() { second.client.Close() })
	w.untilDaemons(2)
	asked := make(chan uint64, 10)
	answers := func(used uint64) func(*wire.Inspect) wire.Message {
		return func(m *wire.Inspect) wire.Message {
			asked <- m.Number
			return &wire.GateState{
				Number: m.Number, Tables: []wire.GateTable{{Name: "parked", Used: used, Size: 9}},
				Counters:   []wire.GateCounter{{Name: "pings", Value: 3}},
				Interfaces: []wire.GateInterface{{Name: "eth0", Mode: "off"}},
			}
		}
	}
	w.d.inspected(answers(4))
	second.inspected(answers(0))
	w.inspector(time.Hour, time.Hour)
	gate := func(node string, parked uint64) status.Gate {
		return status.Gate{
			Node: node, Parked: parked, Tables: []status.GateTable{{Name: "parked", Used: parked, Size: 9}},
			Counters:   map[string]uint64{"pings": 3},
			Interfaces: map[string]string{"eth0": "off"},
		}
	}
	want := []status.Gate{gate("n1", 4), gate("n2", 0)}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if got, err := w.c.Gates(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v\nwant %+v", got, err, want)
			}
		})
	}
	both.Wait()
	if len(asked) != 2 {
		t.Errorf("two daemons were asked %d times", len(asked))
	}
}

func TestDaemonsThatDoNotAnswerHoldUpNobody(t *testing.T) {
	w := newWorld(t, nil)
	second := w.daemonOn("n2")
	w.untilDaemons(2)
	w.inspector(time.Millisecond, time.Millisecond)
	want := []status.Gate{
		{Node: "n1", Silent: true, Tables: []status.GateTable{}}, {Node: "n2", Silent: true, Tables: []status.GateTable{}},
	}
	if got, err := w.c.Gates(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := w.c.Connections(t.Context()); err != nil || !slices.Equal(got.Silent, []string{"n1", "n2"}) {
		t.Errorf("%+v, %v", got, err)
	}
	w.inspects(false) // the answer is forgotten
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	w.inspector(time.Hour, time.Hour)
	if _, err := w.c.Gates(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("one who does not wait: %v", err)
	}
	// A daemon that leaves is not waited for.
	w.d.inspected(func(m *wire.Inspect) wire.Message { return &wire.GateState{Number: m.Number} })
	w.c.loop.call(func() { w.c.receiver.inspector.gates = nil })
	got := make(chan []status.Gate, 1)
	go func() { gates, _ := w.c.Gates(t.Context()); got <- gates }()
	w.inspects(true)
	second.client.Close()
	if gates := <-got; len(gates) != 1 || gates[0].Silent {
		t.Errorf("%+v", gates)
	}
}

func pairOf(client netip.Addr, service netip.AddrPort, open uint32) wire.ConnectedPair {
	return wire.ConnectedPair{Client: client, Service: service, Open: open}
}

func TestConnectionsOfAllNodesAreAdded(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("shop"), newService("blog"))
	shop, blog := w.vip("shop"), w.vip("blog")
	second := w.daemonOn("n2")
	t.Cleanup(func() { second.client.Close() })
	w.untilDaemons(2)
	w.inspector(time.Hour, time.Hour)
	one, two := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::2")
	w.d.inspected(func(m *wire.Inspect) wire.Message {
		if m.Most != wire.MaxConnected {
			t.Errorf("%d pairs wanted of each of two nodes", m.Most)
		}
		pairs := []wire.ConnectedPair{pairOf(one, shop, 2), pairOf(two, blog, 4)}
		return &wire.Connected{Number: m.Number, Others: 7, Pairs: pairs}
	})
	gone := netip.MustParseAddrPort("10.46.200.200:80")
	second.inspected(func(m *wire.Inspect) wire.Message {
		second.client.Send(&wire.Connected{Number: m.Number + 1, Others: 1000}) // no answer to a question
		pairs := []wire.ConnectedPair{pairOf(one, shop, 3), pairOf(two, gone, 5)}
		return &wire.Connected{Number: m.Number, Others: 1, Pairs: pairs}
	})
	got, err := w.c.Connections(t.Context())
	want := status.Connections{Most: []status.ConnectionsOf{
		{Client: one, Service: "default/shop", Open: 5}, {Client: two, Service: "default/blog", Open: 4},
	}, Others: 13}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
}

func TestOnlyThePairsWithTheMostConnectionsAreListed(t *testing.T) {
	pairs := map[clientOf]uint64{}
	for i := range 2 * wire.MaxConnected {
		pairs[clientOf{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), "default/a"}] = uint64(1 + i%2)
	}
	got := most(pairs, 1)
	if len(got.Most) != wire.MaxConnected || got.Others != 1+wire.MaxConnected ||
		slices.ContainsFunc(got.Most, func(c status.ConnectionsOf) bool { return c.Open != 2 }) {
		t.Errorf("%d pairs and %d others", len(got.Most), got.Others)
	}
}

func TestInspectionEndsWithTheController(t *testing.T) {
	w := newWorld(t, nil)
	w.untilDaemons(1)
	w.inspector(time.Hour, time.Hour)
	done := make(chan error, 1)
	go func() { _, err := w.c.Gates(t.Context()); done <- err }()
	w.inspects(true)
	w.c.Detach()
	<-done // an error, or what was known once the daemon was gone
	if _, err := w.c.Gates(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
}
