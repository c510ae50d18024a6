// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"flag"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"wangell.loutres.me/internal/base/monotime"
)

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
