// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
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

var (
	carryFlows    = flag.Int("carry.flows", 20_000, "flows that a takeover carries; also the size of their table")
	carryServices = flag.Int("carry.services", 200, "services that a takeover carries, with two pods each")
)

// numberedFlow returns the key of flow number i.
func numberedFlow(i int) gateFlowKey {
	host := netip.AddrFrom4([4]byte{10, 47, byte(i >> 8), byte(i)})
	return flowKey(netip.AddrPortFrom(host, uint16(1024+i>>16)), numberedService(i%*carryServices))
}

// eachFlowPart calls f with consecutive ranges of flow numbers, which together are all.
func eachFlowPart(f func(from, to int)) {
	const part = 1 << 14
	for from := 0; from < *carryFlows; from += part {
		f(from, min(from+part, *carryFlows))
	}
}

// putNumberedFlows enters all flows, with records that differ.
func (w *world) putNumberedFlows(last monotime.Time) {
	w.Helper()
	eachFlowPart(func(from, to int) {
		keys, flows := make([]gateFlowKey, 0, to-from), make([]gateFlow, 0, to-from)
		for i := from; i < to; i++ {
			index, ok := w.g.podTable.index(numberedService(i%*carryServices), uint64(1+i%2))
			if !ok {
				w.Fatalf("the pod of flow %d is unknown", i)
			}
			keys = append(keys, numberedFlow(i))
			flows = append(flows, gateFlow{State: estab, Isn: uint32(7 * i), Pod: index,
				Generation: w.g.pods.at(index).Generation, Seq: [2]uint32{uint32(i), uint32(2 * i)}, Last: uint64(last)})
		}
		_, err := w.g.objs.Flows.BatchUpdate(keys, flows, nil)
		w.must(err)
	})
}

// carriedFlows returns how many flows are there, and fails the test if one is another than it was.
func (w *world) carriedFlows() int {
	w.Helper()
	n := 0
	for i := range *carryFlows {
		var f gateFlow
		if w.g.objs.Flows.Lookup(numberedFlow(i), &f) != nil {
			continue
		}
		n++
		pod := w.g.pods.at(f.Pod)
		if f.State != estab || f.Isn != uint32(7*i) || f.Seq != [2]uint32{uint32(i), uint32(2 * i)} ||
			f.Generation != pod.Generation || pod.Id != uint64(1+i%2) ||
			netip.AddrPortFrom(fromAddr(pod.Vip.Addr), ntohs(pod.Vip.Port)) != numberedService(i%*carryServices) {
			w.Fatalf("flow %d of pod %+v: %+v", i, pod, f)
		}
	}
	return n
}

// A full table of flows, and the services and pods of a large cluster, are carried whole: what does not change during
// the first pass, and what does. If the next table is smaller, it is full, and holds nothing outdated.
func TestOpenCarriesFullTables(t *testing.T) {
	w, cfg := newReopened(t)
	closeAndRemove(t, w, cfg)
	w.must(w.g.Close())
	pods := 2 * *carryServices
	cfg.Sizes = Sizes{Flows: uint32(*carryFlows), Pods: uint32(pods), Services: uint32(*carryServices),
		FlowsPerSource: uint32(*carryFlows), FlowsPerService: uint32(*carryFlows)}
	w.must(Remove(cfg.Dir))
	sh(t, "ip addr add %v/24 dev nic", thisNode)
	cfg.EncapPort, cfg.NodeAddr = encapPort, thisNode
	w.reopen(cfg)
	for s := range *carryServices {
		at := numberedService(s)
		_, err := w.g.SetService(Service{Addr: at, MaxParked: 1, MaxParkedPerSource: 1})
		w.must(err)
		for i := 1; i <= 2; i++ {
			w.must(w.g.AddPod(Pod{ID: uint64(i), Service: at, Addr: podAt[i], Node: otherNode}))
			_, err := w.g.Serve(at, uint64(i))
			w.must(err)
		}
	}
	before, during := monotime.Now().Add(-time.Minute), monotime.Now().Add(24*time.Hour)
	late := regexp.MustCompile(`(?:changed meanwhile|all changes of [^"]*)" map=flows entries=(\d+)`)
	for _, c := range []struct {
		name          string
		last          monotime.Time // changed before the first pass, or during it
		size          int
		changed, stay int
	}{
		{"idle", before, *carryFlows, 0, *carryFlows},
		{"in use", during, *carryFlows, *carryFlows, *carryFlows},
		{"smaller", during, *carryFlows / 2, *carryFlows / 2, *carryFlows / 2},
	} {
		w.putNumberedFlows(c.last)
		w.must(w.g.Close())
		repin(t, &cfg, gateMapFlows, func(m *ebpf.MapSpec) { m.Value = older(m.Value.(*btf.Struct)) })
		repin(t, &cfg, gateMapPods, func(m *ebpf.MapSpec) { m.Value = older(m.Value.(*btf.Struct)) })
		cfg.Sizes.Flows = uint32(c.size)
		begun := time.Now()
		log := w.reopen(cfg)
		t.Logf("%s, in %v:\n%s", c.name, time.Since(begun).Round(time.Millisecond), log)
		if m := late.FindStringSubmatch(log); m == nil || m[1] != strconv.Itoa(c.changed) {
			t.Errorf("%s: want %d entries that changed meanwhile", c.name, c.changed)
		}
		if n := w.carriedFlows(); n != c.stay {
			t.Errorf("%s: %d flows, want %d", c.name, n, c.stay)
		}
		if n := len(w.g.Services()); n != *carryServices {
			t.Errorf("%s: %d services, want %d", c.name, n, *carryServices)
		}
		open := 0
		for s := range *carryServices {
			for id := range uint64(2) {
				counts, err := w.g.PodCounters(numberedService(s), id+1)
				w.must(err)
				open += int(counts.Open)
			}
		}
		if open != c.stay {
			t.Errorf("%s: %d open flows counted, want %d", c.name, open, c.stay)
		}
	}
}

// An upgrade from a version whose maps have the same layout under other names loses nothing.
func TestOpenAdoptsMapsPinnedUnderEarlierNames(t *testing.T) {
	w := &world{TB: t, podLink: make([]netlink.Link, 4), nic: veth(t, "nic")}
	w.podLink[1] = veth(t, "pod1")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, Interfaces: []string{"nic"}}
	open := func() {
		t.Helper()
		var err error
		w.g, err = Open(cfg)
		w.must(err)
	}
	open()
	t.Cleanup(func() {
		w.must(w.g.Close())
		w.must(Remove(cfg.Dir))
	})
	connected(w)
	w.must(w.g.Close())
	for from, to := range renamedMaps {
		w.must(os.Rename(filepath.Join(cfg.mapsDir(), to), filepath.Join(cfg.mapsDir(), from)))
	}

	open()
	w.wantCounts(1, 0, 1)
	if s := w.g.ServiceState(vip); s != Warm {
		t.Errorf("service state %d, want warm", s)
	}
	w.toPod(1, dataFrame(w), w.wantRun(onNIC, dataFrame(w), tcxRedirect))
	for from := range renamedMaps {
		if _, err := os.Stat(filepath.Join(cfg.mapsDir(), from)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the pin %s remains: %v", from, err)
		}
	}
}

// newReopened returns a world with one pod's device, and the configuration of its gate, which the test closes, opens
// again and removes.
func newReopened(t *testing.T) (*world, Config) {
	t.Helper()
	w := &world{TB: t, podLink: make([]netlink.Link, 4), nic: veth(t, "nic")}
	w.podLink[1] = veth(t, "pod1")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, Interfaces: []string{"nic"}}
	var err error
	w.g, err = Open(cfg)
	w.must(err)
	return w, cfg
}
