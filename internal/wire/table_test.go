// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/decide/sources"
)

// manyServices returns n services whose names have a typical length.
func manyServices(n int) []Service {
	out := make([]Service, n)
	for i := range out {
		out[i] = Service{
			Addr:        netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 46, byte(i >> 8), byte(i)}), 80),
			Name:        fmt.Sprintf("default/serverless-example-%d", i),
			IdleSeconds: 300, MaxParked: 1024, MaxParkedPerSource: 512,
		}
	}
	return out
}

// manyRules returns n rules for sources.
func manyRules(n int) Sources {
	rules := make([]sources.Rule, n)
	for i := range rules {
		a := netip.AddrFrom4([4]byte{10, 0, byte(i >> 7), byte(i << 1)})
		rules[i] = sources.Rule{Prefix: netip.PrefixFrom(a, 32), Allow: i%2 == 0}
	}
	return NewSources(rules)
}

// An entry that does not fit a segment has a message of its own, and the greatest one fits a message.
func TestEntriesWithManyRulesArrive(t *testing.T) {
	var tb table
	all := manyServices(40)
	for i, n := range map[int]int{3: MaxSourceRules, 5: 300, 17: 1, 39: MaxSourceRules} {
		all[i].Flags, all[i].Sources = FlagSources, manyRules(n)
	}
	all[39].Name = strings.Repeat("n", maxName)
	if err := tb.set(all); err != nil {
		t.Fatal(err)
	}
	var f follower
	got := map[netip.AddrPort]Service{}
	for i, b := range tb.step(f.tableState) {
		if len(b) > maxMessage {
			t.Fatalf("piece %d has %d bytes", i, len(b))
		}
		m, err := decode(b)
		if err != nil {
			t.Fatal(err)
		}
		step, err := f.add(m.(*Sync))
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > maxSegment && len(m.(*Sync).Upserts) != 1 {
			t.Errorf("piece %d of %d bytes has %d entries", i, len(b), len(m.(*Sync).Upserts))
		}
		if step != nil {
			for _, s := range step.Upserts {
				got[s.Addr] = s
			}
		}
	}
	for _, s := range all {
		if got[s.Addr] != s {
			t.Errorf("%s arrived with %d rules, want %d", s.Name, got[s.Addr].Sources.Len(), s.Sources.Len())
		}
	}
	if n := tb.bytes; n < 2*MaxSourceRules*ruleSize {
		t.Errorf("%d bytes in the table", n)
	}
	err := tb.update(nil, []netip.AddrPort{all[3].Addr, all[39].Addr})
	if err != nil || tb.bytes > 40*100+300*ruleSize {
		t.Errorf("%d bytes in the table without its largest entries (%v)", tb.bytes, err)
	}
	// A change of the rules alone changes the entry.
	was := tb.tableState
	all[5].Sources = manyRules(299)
	if err := tb.update(all[5:6], nil); err != nil || tb.tableState == was {
		t.Errorf("%+v, then %+v (%v)", was, tb.tableState, err)
	}
}

// play sends a follower the step that it lacks, through the encoding, and applies it to have.
func play(t *testing.T, tb *table, f *follower, have map[netip.AddrPort]Service) (pieces int, full bool) {
	t.Helper()
	cut := tb.step(f.tableState)
	for i, b := range cut {
		if len(b) > maxSegment {
			t.Fatalf("piece of %d bytes", len(b))
		}
		m, err := decode(b)
		if err != nil {
			t.Fatal(err)
		}
		step, err := f.add(m.(*Sync))
		if err != nil {
			t.Fatal(err)
		}
		if (step != nil) != (i == len(cut)-1) {
			t.Fatalf("piece %d of %d: step %+v", i, len(cut), step)
		}
		if step != nil {
			if full = step.Base == 0; full {
				clear(have)
			}
			for _, a := range step.Removals {
				delete(have, a)
			}
			for _, s := range step.Upserts {
				have[s.Addr] = s
			}
		}
	}
	return len(cut), full
}

func TestFollowersAgreeWithTheTable(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	var tb table
	want := map[netip.AddrPort]Service{}
	all := manyServices(400)
	followers := make([]follower, 3)
	haves := []map[netip.AddrPort]Service{{}, {}, {}}
	if err := tb.set(all[:200]); err != nil {
		t.Fatal(err)
	}
	for _, s := range all[:200] {
		want[s.Addr] = s
	}
	fulls := 0
	for round := range 2000 {
		var up []Service
		var down []netip.AddrPort
		for range rnd.IntN(8) {
			s := all[rnd.IntN(len(all))]
			if rnd.IntN(2) == 0 {
				down = append(down, s.Addr)
			} else {
				s.IdleSeconds = uint32(rnd.IntN(3))
				up = append(up, s)
			}
		}
		for _, a := range down {
			delete(want, a)
		}
		for _, s := range up {
			want[s.Addr] = s
		}
		if err := tb.update(up, down); err != nil {
			t.Fatal(err)
		}
		if tb.changed > maxHistoryAddrs || len(tb.history) > maxHistory {
			t.Fatal("the history is not limited")
		}
		// One follower is up to date in every round, one now and then, one almost never.
		for i, every := range []int{1, 40, 1900} {
			if round%every != every-1 || tb.tableState == followers[i].tableState {
				continue
			}
			_, full := play(t, &tb, &followers[i], haves[i])
			if full && i == 0 {
				fulls++
			}
			f := &followers[i]
			if f.tableState != tb.tableState || !maps.Equal(haves[i], want) || len(f.entries) != len(want) {
				t.Fatalf("round %d: follower %d differs", round, i)
			}
		}
	}
	if fulls != 1 {
		t.Errorf("the follower that is always up to date got the whole table %d times", fulls)
	}
	var sum uint64
	for _, s := range want {
		sum += hashEntry(&s)
	}
	if sum != tb.hash {
		t.Error("the hash is not the sum of the entries' hashes")
	}
}

func TestTableIsUnchangedAfterBadInput(t *testing.T) {
	var tb table
	if err := tb.set(manyServices(3)); err != nil {
		t.Fatal(err)
	}
	before := tb.tableState
	bad := append(manyServices(2), Service{})
	twice := append(manyServices(2), manyServices(1)...)
	if tb.set(bad) == nil || tb.update(bad, nil) == nil || tb.set(twice) == nil {
		t.Error("bad input is accepted")
	}
	if tb.set(manyServices(65536)) != nil {
		t.Error("a large table is rejected")
	}
	if tb.set(append(manyServices(65536), func() []Service {
		more := manyServices(40_000)
		for i := range more {
			more[i].Addr = netip.AddrPortFrom(more[i].Addr.Addr(), 81)
		}
		return more
	}()...)) == nil {
		t.Error("a table above the limit is accepted")
	}
	if len(tb.entries) != 65536 || tb.version != before.version+1 {
		t.Errorf("%d entries, version %d", len(tb.entries), tb.version)
	}
}

func TestFollowerRejectsStepsThatDoNotFit(t *testing.T) {
	s := manyServices(3)
	h := func(n int) (sum uint64) {
		for i := range n {
			sum += hashEntry(&s[i])
		}
		return sum
	}
	for name, pieces := range map[string][]*Sync{
		"wrong hash": {{Version: 1, Hash: 1, Pieces: 1, Upserts: s}},
		"wrong base": {{Base: 3, Version: 4, Hash: h(3), Pieces: 1, Upserts: s}},
		"piece missing": {
			{Version: 1, Hash: h(3), Pieces: 3, Upserts: s[:1]},
			{Version: 1, Hash: h(3), Piece: 2, Pieces: 3, Upserts: s[1:]},
		},
		"first piece missing": {{Version: 1, Hash: h(3), Piece: 1, Pieces: 2, Upserts: s}},
		"two steps": {
			{Version: 1, Hash: h(3), Pieces: 2, Upserts: s[:1]},
			{Version: 2, Hash: h(3), Piece: 1, Pieces: 2, Upserts: s[1:]},
		},
	} {
		var f follower
		var last error
		for _, p := range pieces {
			step, err := f.add(p)
			if step != nil {
				t.Errorf("%s: applied", name)
			}
			last = err
		}
		if last == nil || f.tableState != (tableState{}) || f.step != nil {
			t.Errorf("%s: error %v, state %v", name, last, f.tableState)
		}
	}
	// A first piece starts over.
	var f follower
	if _, err := f.add(&Sync{Version: 1, Hash: h(3), Pieces: 2, Upserts: s[:1]}); err != nil {
		t.Fatal(err)
	}
	if step, err := f.add(&Sync{Version: 2, Hash: h(2), Pieces: 1, Upserts: s[:2]}); step == nil || err != nil {
		t.Errorf("%v %v", step, err)
	}
}

func TestTenThousandServicesAreSentOnceAndThenByDifferences(t *testing.T) {
	noLeak(t)
	ctl := startController(t, "127.0.0.1:0", nil)
	dmn := startDaemon(t, ctl.addr, "node-1", func(c *ClientConfig) {
		count := c.Services
		c.Services = func(full bool, up []Service, down []netip.AddrPort) {
			if full && len(up) != 10_000 || !full && len(up)+len(down) > 2 {
				t.Errorf("step full=%v with %d upserts and %d removals", full, len(up), len(down))
			}
			count(full, up, down)
		}
	})
	ctl.peer(t, "node-1")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	services := manyServices(10_000)
	start := time.Now()
	if err := ctl.SetServices(services); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the whole table", func() bool { _, _, _, _, n := dmn.state(); return n == 10_000 })
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("10,000 services: %v, %d datagrams, %d repeats, heap of server, client and test grew by %d KiB",
		took, ctl.Counters().SentDatagrams, ctl.Counters().Repeats, int64(after.HeapAlloc-before.HeapAlloc)/1024)
	// The limits are far above the usual values (0.1 s, 8 MiB), so that the test passes on a busy machine.
	if took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
		t.Errorf("heap grew by %d bytes", grown)
	}

	services[17].IdleSeconds = 5
	if err := ctl.UpdateServices(services[17:18], []netip.AddrPort{services[18].Addr}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change", func() bool { _, _, _, _, n := dmn.state(); return n == 9_999 })
	sent := ctl.Counters().SentDatagrams
	if err := ctl.SetServices(services); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the change back", func() bool { _, _, _, _, n := dmn.state(); return n == 10_000 })
	if n := ctl.Counters().SentDatagrams - sent; n > 20 {
		t.Errorf("%d datagrams for one service", n)
	}
	if _, _, steps, fulls, _ := dmn.state(); steps != 3 || fulls != 1 {
		t.Errorf("%d steps, %d of them whole", steps, fulls)
	}
}

func TestReconnectedClientGetsDifferencesOnly(t *testing.T) {
	noLeak(t)
	quick := 200 * time.Millisecond
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Keepalive = quick })
	r := startRelay(t, ctl.addr)
	dmn := startDaemon(t, r.addr(), "node-1", func(c *ClientConfig) { c.Keepalive = quick })
	if err := ctl.SetServices(manyServices(1000)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the table", func() bool { _, _, _, _, n := dmn.state(); return n == 1000 })
	r.set(func() { r.cut = true })
	eventually(t, "gone", func() bool { return ctl.leaves() == 1 })
	if err := ctl.UpdateServices(nil, []netip.AddrPort{manyServices(1)[0].Addr}); err != nil {
		t.Fatal(err)
	}
	r.set(func() { r.cut = false })
	eventually(t, "the change", func() bool { _, _, _, _, n := dmn.state(); return n == 999 })
	if _, _, _, fulls, _ := dmn.state(); fulls != 1 {
		t.Errorf("%d whole tables, although the server knew the differences", fulls)
	}
}

func TestWholeTableIsSentAfterAWrongHash(t *testing.T) {
	noLeak(t)
	quick := 200 * time.Millisecond
	ctl := startController(t, "127.0.0.1:0", func(c *ServerConfig) { c.Keepalive = quick })
	spoil := make(chan func(*follower), 1)
	var dmn *daemon
	started := make(chan struct{})
	dmn = startDaemon(t, ctl.addr, "node-1", func(c *ClientConfig) {
		c.Keepalive = quick
		c.Receive = func(Message) { // runs on the goroutine that owns the follower
			<-started
			(<-spoil)(&dmn.table)
		}
	})
	close(started)
	p := ctl.peer(t, "node-1")
	if err := ctl.SetServices(manyServices(50)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the table", func() bool { _, _, _, _, n := dmn.state(); return n == 50 })
	// The follower's table is wrong, so the hash does not match after the next difference.
	spoil <- func(f *follower) { f.hash++ }
	if err := ctl.SendWait(t.Context(), p.ID, wake(1)); err != nil {
		t.Fatal(err)
	}
	if err := ctl.UpdateServices(nil, []netip.AddrPort{manyServices(1)[0].Addr}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "repaired", func() bool { _, _, _, fulls, n := dmn.state(); return fulls == 2 && n == 49 })
	if c := ctl.Counters(); c.SyncRepairs != 1 {
		t.Errorf("counters %+v", c)
	}
}
