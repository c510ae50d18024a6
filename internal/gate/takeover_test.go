// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"wangell.loutres.me/internal/base/monotime"
)

// older returns what a structure may have been in an earlier version: its fields are in the opposite order, behind one
// that is gone, and some are not there yet.
func older(s *btf.Struct, without ...string) *btf.Struct {
	out := &btf.Struct{Name: s.Name}
	members := append(slices.Clone(s.Members), btf.Member{Name: "gone", Type: u64})
	slices.Reverse(members)
	for _, m := range members {
		if slices.Contains(without, m.Name) {
			continue
		}
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			panic(err)
		}
		align := uint32(8)
		for size%int(align) != 0 {
			align /= 2
		}
		out.Size = (out.Size + align - 1) &^ (align - 1)
		m.Offset = btf.Bits(out.Size * 8)
		out.Members = append(out.Members, m)
		out.Size += uint32(size)
	}
	out.Size = (out.Size + 7) &^ 7
	return out
}

// repin replaces a pinned map by one with other types, which gets its entries.
func repin(t *testing.T, cfg *Config, name string, change func(*ebpf.MapSpec)) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	spec, err := readPrograms()
	must(err)
	setSizes(spec, cfg.withDefaults().Sizes)
	m := spec.Maps[name]
	m.Pinning = ebpf.PinNone
	change(m)
	size, err := btf.Sizeof(m.Value)
	must(err)
	m.ValueSize = uint32(size)
	path := filepath.Join(cfg.mapsDir(), name)
	present, err := ebpf.LoadPinnedMap(path, nil)
	must(err)
	defer present.Close()
	past, err := ebpf.NewMap(m)
	must(err)
	defer past.Close()
	if c, err := newCarriage(name, present, m); err == nil {
		c.to = past
		_, err := c.copy(time.Now().Add(time.Minute))
		must(err)
	}
	must(os.Remove(path))
	must(past.Pin(path))
}

// closeAndRemove closes the gate of a world and removes it when the test ends.
func closeAndRemove(t *testing.T, w *world, cfg Config) {
	t.Cleanup(func() { w.must(errors.Join(w.g.Close(), Remove(cfg.Dir))) })
}

// reopen opens the gate again, and returns the log.
func (w *world) reopen(cfg Config) string {
	w.Helper()
	var log bytes.Buffer
	cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	w.g, err = Open(cfg)
	w.must(err)
	w.before = w.counters()
	return log.String()
}

// wantGoesOn fails the test unless the connection of connected goes on.
func (w *world) wantGoesOn() {
	w.Helper()
	w.wantCounts(1, 0, 1)
	if s := w.g.ServiceState(vip); s != Warm {
		w.Errorf("service state %d, want warm", s)
	}
	w.toPod(1, dataFrame(w), w.wantRun(onNIC, dataFrame(w), tcxRedirect))
	w.wantRun(onPod1, podData(w).frame(), tcxRedirect)
	if got := w.counted(); len(got) > 0 {
		w.Errorf("counted %v", got)
	}
	for _, dir := range []string{w.g.cfg.formerDir(), w.g.cfg.nextDir()} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			w.Errorf("%s is still there: %v", dir, err)
		}
	}
	var n uint32
	w.must(w.g.objs.TakingOver.Get(&n))
	if n != 0 {
		w.Error("segments of unknown flows are still dropped")
	}
}

// A connection goes on, in whatever order the fields of its record, its pod and its service were before.
func TestOpenCarriesMapsOfAnotherLayout(t *testing.T) {
	w, cfg := newReopened(t)
	closeAndRemove(t, w, cfg)
	connected(w)
	w.must(w.g.Close())
	for name, without := range map[string][]string{
		gateMapFlows: {"next_isn", "next_wscale"}, gateMapPods: {"moved"}, gateMapServices: nil, gateMapServiceStatuses: nil,
		gateMapPodTraffic: nil, gateMapSynBackups: nil,
	} {
		repin(t, &cfg, name, func(m *ebpf.MapSpec) { m.Value = older(m.Value.(*btf.Struct), without...) })
	}
	log := w.reopen(cfg)
	w.wantGoesOn()
	flows := regexp.MustCompile(`map=flows entries=1 .*added="\[next_isn next_wscale\]" dropped=\[gone\]`)
	if !flows.MatchString(log) {
		t.Errorf("the log does not tell what was carried:\n%s", log)
	}
	// The next start has nothing to carry.
	w.must(w.g.Close())
	if log := w.reopen(cfg); strings.Contains(log, "carried") {
		t.Errorf("carried again:\n%s", log)
	}
	w.wantCounts(1, 0, 1)
}

// A layout of the same size is another one all the same.
func TestOpenSeesThatFieldsHaveMoved(t *testing.T) {
	w, cfg := newReopened(t)
	closeAndRemove(t, w, cfg)
	connected(w)
	w.must(w.g.Close())
	repin(t, &cfg, gateMapFlows, func(m *ebpf.MapSpec) {
		s := m.Value.(*btf.Struct)
		moved := &btf.Struct{Name: s.Name, Size: s.Size, Members: slices.Clone(s.Members)}
		for i := range moved.Members {
			switch moved.Members[i].Name {
			case "pod":
				moved.Members[i].Name = "generation"
			case "generation":
				moved.Members[i].Name = "pod"
			}
		}
		m.Value = moved
	})
	w.reopen(cfg)
	w.wantGoesOn()
}

// What cannot be carried begins empty: alone if the rest can do without it, and otherwise with all others.
func TestOpenReplacesMapsThatCannotBeCarried(t *testing.T) {
	widen := func(field string) func(*ebpf.MapSpec) {
		return func(m *ebpf.MapSpec) {
			s := older(m.Value.(*btf.Struct))
			for i := range s.Members {
				if s.Members[i].Name == field {
					s.Members[i].Type = u16
				}
			}
			m.Value = s
		}
	}
	w, cfg := newReopened(t)
	closeAndRemove(t, w, cfg)
	connected(w)
	w.must(w.g.Close())
	repin(t, &cfg, gateMapSynRecords, widen("isn"))
	log := w.reopen(cfg)
	if want := "begins empty\" map=syn_records error=\"values: isn: type has changed"; !strings.Contains(log, want) {
		t.Errorf("the log has no %q:\n%s", want, log)
	}
	w.wantGoesOn()

	w.must(w.g.Close())
	repin(t, &cfg, gateMapPods, widen("ifindex"))
	log = w.reopen(cfg)
	if want := "map pods: values: ifindex: type has changed"; !strings.Contains(log, want) {
		t.Errorf("the log has no %q:\n%s", want, log)
	}
	if n := len(w.g.Services()); n != 0 {
		t.Errorf("%d services, want none", n)
	}
	w.warm(vip, 1)
	w.wantRun(onNIC, synFrame(w), tcxRedirect)
}

// Tables may have other sizes. An array that becomes smaller has entries for which there is no place.
func TestOpenKeepsConnectionsWithOtherSizes(t *testing.T) {
	w, cfg := newReopened(t)
	closeAndRemove(t, w, cfg)
	connected(w)
	for _, s := range []Sizes{
		{Flows: 8},
		{Flows: 1 << 16, Pods: 8192, Services: 20000, Parked: 8192, Ring: 8192},
		{Pods: 8192, Services: 20000, Ring: 1024},
	} {
		w.must(w.g.Close())
		cfg.Sizes = s
		w.reopen(cfg)
		w.wantGoesOn()
	}
	w.must(w.g.Close())
	cfg.Sizes.Pods = 8
	if log := w.reopen(cfg); !strings.Contains(log, "had 8192 entries and has 8") || len(w.g.Services()) > 0 {
		t.Errorf("log:\n%s", log)
	}
}

// The second pass brings what the former programs have done during the first, and the next process does it if this one
// was killed.
func TestOpenFinishesWhatWasInterrupted(t *testing.T) {
	w, cfg := newReopened(t)
	closeAndRemove(t, w, cfg)
	connected(w)
	k := flowKey(client, vip)
	var late gateFlow
	w.must(w.g.objs.Flows.Lookup(k, &late))
	w.must(w.g.objs.Flows.Delete(k))
	w.must(w.g.Close())

	// The former flows: with another layout, and with a connection that the present ones lack.
	present := cfg.mapsDir()
	repin(t, &cfg, gateMapFlows, func(*ebpf.MapSpec) {})
	w.must(os.MkdirAll(cfg.formerDir(), 0o700))
	w.must(os.Rename(filepath.Join(present, gateMapFlows), filepath.Join(cfg.formerDir(), gateMapFlows)))
	former, err := ebpf.LoadPinnedMap(filepath.Join(cfg.formerDir(), gateMapFlows), nil)
	w.must(err)
	late.Last = uint64(monotime.Now().Add(time.Hour)) // after the next process has begun
	w.must(former.Put(k, &late))
	w.must(former.Close())
	w.reopen(cfg)
	w.wantGoesOn()

	// Killed between the two steps of swap.
	w.must(w.g.Close())
	w.must(os.Rename(present, cfg.formerDir()))
	w.must(os.MkdirAll(cfg.nextDir(), 0o700))
	w.reopen(cfg)
	w.wantGoesOn()
}

// Until the takeover ends, the programs record nothing and answer nothing: TCP sends it again.
func TestNothingIsRefusedDuringATakeover(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	w.must(w.g.objs.TakingOver.Set(uint32(1)))
	defer func() { w.must(w.g.objs.TakingOver.Set(uint32(0))) }()
	w.wantRun(onNIC, dataFrame(w), tcxDrop)
	w.wantRun(onLocal, dataFrame(w), tcxDrop)
	w.wantRun(onPod1, podData(w).frame(), tcxDrop)
	if got := w.counted(); len(got) > 0 {
		t.Errorf("counted %v", got)
	}
	w.must(w.g.objs.TakingOver.Set(uint32(0)))
	w.wantRun(onNIC, dataFrame(w), tcxRedirect)
}

// Connections of all kinds go on, and new ones begin, while gates with tables of other sizes take over from each other:
// the programs of each run on maps of their own.
func TestConnectionsSurviveThatTablesAreCarried(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	n.service()
	n.addPod(vip, 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	from := echo(n, podNS(1), podAt[1])
	go func() {
		for {
			<-from
		}
	}()
	idle, err := dial("client", vip)
	n.must(err)
	var stop [2]chan struct{}
	done := make(chan error, len(stop))
	for i, ns := range []string{"client", ""} {
		stop[i] = make(chan struct{})
		go func() {
			for {
				if err := <-visit(ns, vip, 1<<20); err != nil {
					done <- fmt.Errorf("client %q: %w", ns, err)
					return
				}
				select {
				case <-stop[i]:
					done <- nil
					return
				default:
				}
			}
		}()
	}
	for i := range 4 {
		before := n.g
		n.cfg.Sizes = Sizes{Flows: uint32(1000 * (i + 1)), Pods: uint32(5000 + i), Services: uint32(20000 + i)}
		n.open()
		n.must(before.Close())
	}
	for i := range stop {
		close(stop[i])
	}
	for range stop {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	n.must(exchange(idle, 1<<20))
	eventually(n, func() error {
		c, err := n.g.PodCounters(vip, 1)
		if err == nil && (c.Open != 0 || c.HalfOpen != 0) {
			err = fmt.Errorf("%d open, %d half-open; want none", c.Open, c.HalfOpen)
		}
		return err
	})
	if got := counted(t, n.g); got["stray"]+got["late_replies"]+got["no_service"] > 0 {
		t.Errorf("counted %v", got)
	}
}
