// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/test/testutil/need"
)

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[len(s)/2]
}

// runBatch is the number of packets per test run.
const runBatch = 20000

// batches runs batches of a frame and reports the median time per packet.
func (w *world) batches(b *testing.B, on program, frame []byte, verdict uint32) {
	b.Helper()
	if r := w.runs(on, frame, 2); r.verdict != verdict {
		b.Fatalf("gate_%v: verdict %d, want %d", on, int32(r.verdict), int32(verdict))
	}
	var took []float64
	for b.Loop() {
		took = append(took, float64(w.runs(on, frame, runBatch).took))
	}
	reportMedian(b, took)
}

// mirrored adds two warm services, each the pod of the other: a frame that gate_nic or gate_pod has translated for one
// is a packet to the other, so it can be run any number of times and is translated each time.
func mirrored(w *world) (data, reply segment) {
	w.Helper()
	second := netip.MustParseAddrPort("10.46.100.6:8080")
	l := w.podLink[1].Attrs()
	for i, a := range []netip.AddrPort{vip, second} {
		w.service(a, 100, 100)
		w.must(w.g.AddPod(Pod{ID: 1, Service: a, Addr: []netip.AddrPort{second, vip}[i], Ifindex: l.Index,
			MAC: w.nic.Attrs().HardwareAddr, HostMAC: clientMAC}))
		w.serve(a, 1)
	}
	for i, a := range []netip.AddrPort{vip, second} {
		s := w.syn(1000)
		s.to = a
		w.wantRun(onNIC, s.frame(), tcxRedirect)
		r := w.fromPod(1, "SA", 5000, 1001)
		r.from = []netip.AddrPort{second, vip}[i]
		r.options = synOptions
		w.wantRun(onPod1, r.frame(), tcxRedirect)
		s.flags, s.seq, s.ack, s.options = "A", 1001, 5001, nil
		w.wantRun(onNIC, s.frame(), tcxRedirect)
		if f, _ := w.flow(client, a); f.State != estab {
			w.Fatalf("flow %d is %d", i, f.State)
		}
	}
	data = w.fromClient("PA", 1001, 5001, make([]byte, 100)...)
	reply = w.fromPod(1, "PA", 5001, 1001, make([]byte, 1000)...)
	reply.from = second
	for _, s := range []*segment{&data, &reply} { // like Linux
		s.options = synOptions[2:3]
	}
	return data, reply
}

// BenchmarkGate reports the time of a packet in each program, many in a row.
func BenchmarkGate(b *testing.B) {
	all := newWorld(b, nil)
	b.Run("established/to pod", func(b *testing.B) {
		w := all.in(b)
		data, _ := mirrored(w)
		w.batches(b, onNIC, data.frame(), tcxRedirect)
	})
	b.Run("established/from pod", func(b *testing.B) {
		w := all.in(b)
		_, reply := mirrored(w)
		w.batches(b, onPod1, reply.frame(), tcxRedirect)
	})
	b.Run("established/to pod from this node", func(b *testing.B) {
		w := all.in(b)
		data, _ := mirrored(w)
		w.batches(b, onLocal, data.frame(), tcxRedirect)
	})
	b.Run("established/passes xdp", func(b *testing.B) {
		w := all.in(b)
		data, _ := mirrored(w)
		w.batches(b, onXDP, data.frame(), xdpPass)
	})
	b.Run("established/to pod, 100,000 flows", func(b *testing.B) {
		w := all.in(b)
		data, _ := mirrored(w)
		w.fillFlows(100000)
		w.batches(b, onNIC, data.frame(), tcxRedirect)
	})
	b.Run("foreign/nic", func(b *testing.B) {
		w := all.in(b)
		w.warm(vip, 1)
		w.batches(b, onNIC, toForeign(w).frame(), tcxNext)
	})
	b.Run("foreign/xdp", func(b *testing.B) {
		w := all.in(b)
		w.warm(vip, 1)
		w.batches(b, onXDP, toForeign(w).frame(), xdpPass)
	})
	b.Run("syn flood/limit reached", func(b *testing.B) {
		w := all.in(b)
		w.service(vip, 10, 10)
		for i := range 10 {
			w.run(onXDP, w.syn(1).fromOther(byte(i), 1).frame())
		}
		w.batches(b, onXDP, w.syn(1).fromOther(200, 1).frame(), xdpDrop)
	})
	b.Run("syn flood/same syn again", func(b *testing.B) {
		w := all.in(b)
		cold(w)
		w.batches(b, onXDP, synFrame(w), xdpDrop)
	})
	b.Run("syn flood/flow table full", func(b *testing.B) {
		w := all.in(b)
		w.warm(vip, 1)
		w.fillFlows(int(w.g.cfg.Sizes.Flows))
		s := w.syn(1)
		// It is dropped, so it stays the same.
		w.batches(b, onNIC, s.frame(), tcxDrop)
	})
	b.Run("nothing", func(b *testing.B) {
		w := all.in(b)
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
		w.must(err)
		defer p.Close()
		w.g.objs.GateNic, p = p, w.g.objs.GateNic
		defer func() { w.g.objs.GateNic, p = p, w.g.objs.GateNic }()
		w.batches(b, onNIC, toForeign(w).frame(), tcxDrop)
	})
	b.Run("syn parked", func(b *testing.B) {
		w := all.in(b)
		w.service(vip, 4000, 4000)
		w.each(b, onXDP, xdpDrop, func(i int) {
			if i%4000 == 0 {
				w.must(w.g.RemoveService(vip))
				w.service(vip, 4000, 4000)
			}
		})
	})
	b.Run("syn opens a flow", func(b *testing.B) {
		w := all.in(b)
		w.warm(vip, 1)
		w.each(b, onNIC, tcxRedirect, func(int) {})
	})
	b.Run("syn opens a flow, 3 pods", func(b *testing.B) {
		w := all.in(b)
		w.warm(vip, 1, 2, 3)
		w.each(b, onNIC, tcxRedirect, func(int) {})
	})
}

// each runs single SYNs of different clients, and reports the median time less that of an empty run.
func (w *world) each(b *testing.B, on program, verdict uint32, before func(i int)) {
	b.Helper()
	var took, empty []float64
	none := arpFrame(2, client.Addr(), client.Addr())
	i := 0
	for b.Loop() {
		before(i)
		f := w.syn(1).fromOther(byte(i>>12), uint16(1000+i%4096)).frame()
		r := w.runs(on, f, 1)
		if r.verdict != verdict {
			b.Fatalf("SYN %d: verdict %d", i, int32(r.verdict))
		}
		took = append(took, float64(r.took))
		empty = append(empty, float64(w.runs(on, none, 1).took))
		i++
	}
	b.ReportMetric(median(took)-median(empty), "ns/packet")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkSweep reports the time of a sweep over 100,000 flows.
func BenchmarkSweep(b *testing.B) {
	w := newWorld(b, nil)
	connected(w)
	f, _ := w.flow(client, vip)
	w.fillFlowsWith(100000, f)
	i, _ := w.g.podTable.index(vip, 1)
	w.g.pods.at(i).Open = 100001
	_, err := w.g.Sweep(DefaultAges()) // corrects the shares
	w.must(err)
	for b.Loop() {
		s, err := w.g.Sweep(DefaultAges())
		if err != nil || s.Flows != 100001 || s.Fixed != 0 {
			b.Fatalf("%+v, %v", s, err)
		}
	}
}

// BenchmarkScale reports the time of a packet and of changes, and the memory of the maps, with 10,000 services, 1,000
// pods on another node and 100,000 flows.
func BenchmarkScale(b *testing.B) {
	w := newRemoteWorld(b, nil)
	const services, pods = 10000, 1000
	addr := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 46, 100, byte(10 + i%200)}), uint16(1000+i/200))
	}
	start := time.Now()
	for i := range services {
		w.service(addr(i), 100, 100)
	}
	b.Logf("%v to add a service", time.Since(start)/services)
	data, _ := mirrored(w)
	start = time.Now()
	for i := range pods {
		w.must(w.g.AddPod(Pod{ID: uint64(i), Service: addr(i), Addr: podAt[2], Node: otherNode}))
		w.serve(addr(i), i)
	}
	b.Logf("%v to add a pod and serve it", time.Since(start)/pods)
	w.fillFlows(100000)
	var sum uint64
	o := &w.g.objs.gateMaps
	for _, m := range []*ebpf.Map{o.Services, o.Addresses, o.ServiceStatuses, o.Pods, o.PodTraffic, o.PodPorts,
		o.PodNames, o.Flows, o.RingSlots, o.SynBackups, o.MaglevTables, o.ParkedSyns, o.ParkedFlows, o.ParkedSources} {
		info, err := m.Info()
		w.must(err)
		lock, _ := info.Memlock()
		sum += lock
	}
	b.Logf("%d bytes of maps", sum)
	b.Run("to pod", func(b *testing.B) {
		sub := *w
		sub.TB = b
		sub.batches(b, onNIC, data.frame(), tcxRedirect)
	})
	b.Run("drain and serve", func(b *testing.B) {
		for b.Loop() {
			w.must(w.g.Drain(addr(1), 1))
			w.serve(addr(1), 1)
		}
	})
}

// BenchmarkAnnounce reports the time to announce 10,000 VIPs at once, as when nodes come or go, and one, as when a
// service does.
func BenchmarkAnnounce(b *testing.B) {
	w := newRemoteWorld(b, func(c *Config) { c.ServiceRanges = []netip.Prefix{netip.MustParsePrefix("10.46.64.0/18")} })
	vips := make([]netip.Addr, 10000)
	for i := range vips {
		vips[i] = netip.AddrFrom4([4]byte{10, 46, byte(64 + i>>8), byte(i)})
	}
	w.must(w.g.Announce(false, nil)) // no announcements to the link yet
	for _, v := range vips {
		w.service(netip.AddrPortFrom(v, 80), 100, 100)
	}
	w.must(w.g.Announce(false, vips))
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			w.must(w.g.Announce(false, vips))
		}
	})
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			w.must(w.g.AnnounceVIP(vips[5000], true))
		}
	})
}

// fillFlows enters n flows of other clients.
func (w *world) fillFlows(n int) {
	w.Helper()
	w.fillFlowsWith(n, gateFlow{State: estab, Generation: 1, Last: uint64(monotime.Now())})
}

func (w *world) fillFlowsWith(n int, f gateFlow) {
	w.Helper()
	for i := range n {
		k := flowKey(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 45, byte(i >> 16), byte(i >> 8)}),
			uint16(1+i&0xff)), vip)
		w.must(w.g.objs.Flows.Put(k, f))
	}
}

// It logs the size of the programs, and of the maps at default sizes.
func TestProgramsAndMapsStaySmall(t *testing.T) {
	w := newWorld(t, nil)
	for _, p := range []*ebpf.Program{w.g.objs.GateXdp, w.g.objs.GateNic, w.g.objs.GateLocal, w.g.objs.GateReleased,
		w.g.objs.GatePod, w.g.objs.GateNode, w.g.objs.GateHome, w.g.objs.GateRetry, w.g.objs.GateMoved, w.g.objs.GateCold,
		w.g.objs.GateBehalf, w.g.objs.GateHairpin, w.g.objs.GateIcmp, w.g.objs.GateListen,
		w.g.objs.GateUnpark, w.g.objs.GateSweep} {
		info, err := p.Info()
		w.must(err)
		size, err := info.TranslatedSize()
		w.must(err)
		jited, err := info.JitedSize()
		w.must(err)
		verified, _ := info.VerifiedInstructions()
		t.Logf("%-16s %5d instructions, %6d bytes of machine code, %6d instructions verified", info.Name, size/8, jited,
			verified)
		if size/8 > 7936 {
			t.Errorf("%s has %d instructions", info.Name, size/8)
		}
	}
	var sum uint64
	o := &w.g.objs.gateMaps
	for name, m := range map[string]*ebpf.Map{"services": o.Services, "addresses": o.Addresses,
		"service_statuses": o.ServiceStatuses, "pods": o.Pods, "pod_traffic": o.PodTraffic,
		"pod_ports": o.PodPorts, "flows": o.Flows, "ring_slots": o.RingSlots, "syn_backups": o.SynBackups,
		"maglev_tables": o.MaglevTables, "nodes": o.Nodes, "pod_names": o.PodNames, "ring_heads": o.RingHeads,
		"parked_syns": o.ParkedSyns, "parked_flows": o.ParkedFlows,
		"parked_sources": o.ParkedSources, "scratch": o.Scratch, "nics": o.Nics, "listeners": o.Listeners,
		"events":   o.Events,
		"counters": o.Counters, "recounts": o.Recounts,
		"source_shares": o.SourceShares, "service_shares": o.ServiceShares, "tag_keys": o.TagKeys} {
		info, err := m.Info()
		w.must(err)
		lock, ok := info.Memlock()
		if !ok {
			need.Unmet(t, "needs a kernel that reports the memory of maps")
		}
		t.Logf("%-16s %9d bytes", name, lock)
		sum += lock
	}
	t.Logf("all maps, empty  %9d bytes", sum)
	if sum > 64<<20 {
		t.Errorf("the maps take %d bytes", sum)
	}
}

// Sizes of a large cluster.
const (
	manyServices   = 10_000
	podsOfAService = 2
	manyFlows      = 2_000_000
)

// numberedService returns the address of service number i.
func numberedService(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 46, 100, byte(i % 250)}), uint16(1+i/250))
}

// BenchmarkLargeCluster measures what the daemon does with the gate on a node of a large cluster: 10,000 services with
// 20,000 pods on other nodes, and 2,000,000 flows.
func BenchmarkLargeCluster(b *testing.B) {
	w := newRemoteWorld(b, func(c *Config) {
		c.Sizes = Sizes{Pods: 4 * manyServices * podsOfAService, Flows: manyFlows + 1000}
	})
	node := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 47, byte(i >> 8), byte(i)}) }
	pod := func(service, i int) Pod {
		return Pod{ID: uint64(i + 1), Service: numberedService(service), Node: node(1 + (service+i)%1000),
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 48, byte(service >> 8), byte(service)}), 8080)}
	}
	for s := range manyServices {
		_, err := w.g.SetService(Service{Addr: numberedService(s), MaxParked: 100, MaxParkedPerSource: 100})
		w.must(err)
		for i := range podsOfAService {
			w.must(w.g.AddPod(pod(s, i)))
		}
	}
	b.Run("pod added and removed", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			p := pod(n%manyServices, podsOfAService)
			w.must(w.g.AddPod(p))
			w.must(w.g.RemovePod(p.Service, p.ID))
		}
	})
	b.Run("pods of all services", func(b *testing.B) {
		for b.Loop() {
			for _, s := range w.g.Services() {
				if n := len(w.g.PodIDs(s)); n != podsOfAService {
					b.Fatalf("%d pods of %v", n, s)
				}
			}
		}
	})
	b.Run("sweep, no flows", func(b *testing.B) {
		for b.Loop() {
			_, err := w.g.Sweep(DefaultAges())
			w.must(err)
		}
	})
	index, _ := w.g.podTable.index(numberedService(0), 1)
	w.fillFlowsWith(manyFlows, gateFlow{State: estab, Pod: index, Generation: w.g.pods.at(index).Generation,
		Last: uint64(monotime.Now())})
	b.Run("sweep, 2,000,000 flows", func(b *testing.B) {
		b.ReportAllocs()
		ages := Ages{HalfOpen: time.Hour, Closed: time.Hour, HalfClosed: time.Hour, Established: time.Hour}
		for b.Loop() {
			s, err := w.g.Sweep(ages)
			w.must(err)
			b.ReportMetric(float64(s.Flows), "flows")
		}
	})
}

// onCPU binds the calling goroutine to a thread, and that to a processor.
func onCPU(b *testing.B, cpu int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		b.Error(err)
	}
}

// BenchmarkCountsBesidePackets reports the time of a packet of an established connection on one processor, while
// another changes the counts of the same pod, as when connections to it begin and end there: where both are in one
// cache line, the packet waits for it.
func BenchmarkCountsBesidePackets(b *testing.B) {
	if runtime.NumCPU() < 2 {
		need.Unmet(b, "needs two processors")
	}
	all := newWorld(b, nil)
	for _, c := range []struct {
		name  string
		pause time.Duration // between two changes; negative: there are none
	}{{"alone", -1}, {"200,000 changes a second", 5 * time.Microsecond}, {"all the time", 0}} {
		for _, d := range []struct {
			name string
			on   program
		}{{"to pod", onNIC}, {"from pod", onPod1}} {
			b.Run(d.name+", "+c.name, func(b *testing.B) {
				w := all.in(b)
				data, reply := mirrored(w)
				frame := map[program][]byte{onNIC: data.frame(), onPod1: reply.frame()}[d.on]
				stop := w.changeCounts(b, c.pause)
				defer stop()
				done := make(chan struct{})
				go func() { // its thread ends with it, and the binding with that
					defer close(done)
					onCPU(b, 0)
					w.batches(b, d.on, frame, tcxRedirect)
				}()
				<-done
			})
		}
	}
}

// changeCounts adds to the counts of all pods and takes it back, on the second processor.
func (w *world) changeCounts(b *testing.B, pause time.Duration) (stop func()) {
	if pause < 0 {
		return func() {}
	}
	var group sync.WaitGroup
	var over atomic.Bool
	group.Go(func() {
		onCPU(b, 1)
		next := time.Now()
		for !over.Load() {
			for _, i := range w.g.podTable.used() {
				p := w.g.pods.at(i)
				atomic.AddUint32(&p.HalfOpen, 1)
				atomic.AddUint32(&p.HalfOpen, ^uint32(0))
			}
			for next = next.Add(pause); pause > 0 && time.Now().Before(next); {
			}
		}
	})
	return func() { over.Store(true); group.Wait() }
}
