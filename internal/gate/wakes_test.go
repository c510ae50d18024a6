// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket/layers"
)

// proving adds a cold service whose clients always prove themselves.
func (w *world) proving(a netip.AddrPort, proof Proof) {
	w.Helper()
	_, err := w.g.SetService(Service{Addr: a, MaxParked: 100, MaxParkedPerSource: 100, Proof: proof})
	w.must(err)
}

// challengeTo checks that out is a challenge to a SYN, and returns the RST with which the SYN's client answers.
func challengeTo(w *world, s segment, out []byte) segment {
	w.Helper()
	p := decode(w, out)
	ip, tcp := tcpOf(w, p)
	from, to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip.SrcIP)), uint16(tcp.SrcPort)),
		netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip.DstIP)), uint16(tcp.DstPort))
	if from != s.to || to != s.from {
		w.Errorf("challenge from %v to %v", from, to)
	}
	if !tcp.ACK || tcp.SYN || tcp.RST || tcp.FIN || ip.Length != 40 || ip.TTL == 0 || tcp.Ack == s.seq+1 {
		w.Errorf("not a challenge:\n%v", p.String())
	}
	r := s
	r.flags, r.seq, r.options, r.payload = "R", tcp.Ack, nil, nil
	return r
}

// synAt returns client's SYN as it arrives at a program, and the verdicts with which the program answers and drops it.
func synAt(w *world, on program) (s segment, answered, dropped uint32) {
	s = w.syn(1000)
	switch on {
	case onXDP:
		return s, xdpTX, xdpDrop
	case onPod2:
		s.src, s.dst = podMAC[2], w.podLink[2].Attrs().HardwareAddr
	}
	return s, tcxRedirect, tcxDrop
}

// forgetProofs forgets which clients have proven themselves.
func (w *world) forgetProofs() {
	w.Helper()
	var k gateSourceKey
	for w.g.objs.ProvenClients.NextKey(nil, &k) == nil {
		w.must(w.g.objs.ProvenClients.Delete(k))
	}
}

// The client's next SYN, and that of its other connections, is parked. Nothing is kept for a client before.
func TestProofAdmitsAClient(t *testing.T) {
	all := newWorld(t, nil)
	for _, on := range []program{onXDP, onNIC, onLocal, onPod2} {
		for _, options := range [][]layers.IPv4Option{nil, router} {
			w := all.in(t)
			w.forgetProofs()
			w.proving(vip, ProofAlways)
			s, answered, dropped := synAt(w, on)
			s.ipOptions, s.padding, s.src = options, 9, podMAC[3]
			out := w.wantRun(on, s.frame(), answered)
			// Not to the neighbor that sent the SYN. In tcx, the kernel fills in the addresses later.
			if on == onXDP && (!bytes.Equal(out[:6], clientMAC) || !bytes.Equal(out[6:12], s.dst)) {
				t.Errorf("%v: the challenge goes from %x to %x", on, out[6:12], out[:6])
			}
			answer := challengeTo(w, s, out)
			for _, wrong := range []uint32{answer.seq + 1, answer.seq - 1, s.seq + 1, 0} {
				forged := answer
				forged.seq = wrong
				if v, _ := w.run(on, forged.frame()); on == onXDP && v != xdpPass {
					t.Errorf("%v: verdict %d for a forged proof", on, v)
				}
			}
			other := answer
			other.from = netip.MustParseAddrPort("10.46.200.11:40000")
			w.run(on, other.frame())
			// Without the right number, the SYN is challenged again.
			challengeTo(w, s, w.wantRun(on, s.frame(), answered))
			if c := w.counted(); c["proven"] != 0 || w.g.ServiceState(vip) != Cold {
				t.Errorf("%v: counted %v, state %d", on, c, w.g.ServiceState(vip))
			}
			w.wantRun(on, answer.frame(), dropped)
			w.wantParked(0, 0)
			w.wantRun(on, s.frame(), dropped)
			w.wantParked(1, 1)
			s.from = netip.AddrPortFrom(s.from.Addr(), 40001)
			w.wantRun(on, s.frame(), dropped)
			w.wantParked(2, 1)
			if c := w.counted(); c["proven"] != 1 || c["challenges"] != 2 || w.g.ServiceState(vip) != Waking {
				t.Errorf("%v: counted %v, state %d", on, c, w.g.ServiceState(vip))
			}
			// It has proven nothing to another service.
			s.to = netip.MustParseAddrPort("10.46.100.6:80")
			w.proving(s.to, ProofAlways)
			challengeTo(w, s, w.wantRun(on, s.frame(), answered))
		}
	}
}

// XDP that cannot send leaves the challenge to gate_nic.
func TestChallengeWithoutTX(t *testing.T) {
	w := newWorld(t, nil)
	w.must(w.g.objs.Nics.Put(uint32(w.nic.Attrs().Index), gateNic{Mac: hardwareAddr(w.nic.Attrs().HardwareAddr)}))
	w.proving(vip, ProofAlways)
	s := w.syn(1000)
	w.untouched(onXDP, s.frame())
	answer := challengeTo(w, s, w.wantRun(onNIC, s.frame(), tcxRedirect))
	w.wantRun(onXDP, answer.frame(), xdpDrop)
	w.wantRun(onXDP, s.frame(), xdpDrop)
	w.wantParked(1, 1)
}

// strangers returns the SYN of the i-th of many clients, each in a /24 of its own unless same is set.
func strangers(w *world, i int, same bool) segment {
	s := w.syn(uint32(i))
	a := [4]byte{198, 18, byte(i), 7}
	if same {
		a = [4]byte{198, 18, 1, byte(i)}
	}
	s.from = netip.AddrPortFrom(netip.AddrFrom4(a), 4000)
	return s
}

// serviceAt is the i-th of many services.
func serviceAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 46, 100, byte(10 + i)}), 80)
}

// What is within a budget starts wakes as ever. Beyond it, a service with a proof challenges, one without drops.
func TestBudgetsOfWakes(t *testing.T) {
	const slow = 1.0 / 3600
	for _, c := range []struct {
		name    string
		budgets WakeBudgets
		scope   WakeScope
		// service and source of the i-th SYN
		service, source int
	}{
		{"node", WakeBudgets{Node: Budget{5, slow}}, WakesNode, 1, 1},
		{"source", WakeBudgets{Source: Budget{5, slow}}, WakesSource, 1, 0},
		{"service", WakeBudgets{Service: Budget{5, slow}}, WakesService, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config) { cfg.WakeBudgets = c.budgets })
			e := w.events()
			for _, proof := range []Proof{ProofAuto, ProofNever} {
				w.reset()
				w.refillBudgets()
				for i := range 20 {
					w.proving(serviceAt(i), proof)
				}
				woken := 0
				for i := range 10 {
					s := strangers(w, i, c.source == 0)
					s.to = serviceAt(i * c.service)
					v, _ := w.run(onXDP, s.frame())
					switch state := w.g.ServiceState(s.to); {
					case state == Waking && v == xdpDrop && i < 5:
						woken++
					case state == Cold && i >= 5 && (proof == ProofAuto && v == xdpTX || proof == ProofNever && v == xdpDrop):
					default:
						t.Errorf("SYN %d: verdict %d, state %d", i, v, state)
					}
					w.g.Refuse(s.to)
				}
				if woken != 5 {
					t.Errorf("proof %d: %d wakes, want 5", proof, woken)
				}
				if n := w.counted(); n["challenges"]+n["over_budget"] != 5 || (proof == ProofNever) != (n["over_budget"] == 5) {
					t.Errorf("proof %d: counted %v", proof, n)
				}
			}
			over := e.await(t, EventOverBudget, 1)[0]
			if first := strangers(w, 5, c.source == 0).from.Addr(); !over.Source.Contains(first) || over.Source.Bits() != 24 ||
				over.Service != serviceAt(5*c.service) || over.Scope != c.scope {
				t.Errorf("reported %+v, want the /24 of %v and scope %d", over, first, c.scope)
			}
		})
	}
}

// One /24 wakes no more services than its budget allows, even if its clients prove where they are. Others are not
// concerned, and forged SYNs do not spend it.
func TestProvenClientsWakeNoMoreThanTheirBudget(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.WakeBudgets = WakeBudgets{Proven: Budget{5, 1.0 / 3600}} })
	e := w.events()
	for i := range 10 {
		w.proving(serviceAt(i), ProofAlways)
		for range 3 {
			s := w.syn(1000)
			s.to = serviceAt(i)
			w.wantRun(onXDP, s.frame(), xdpTX)
		}
	}
	wakes := func(s segment) (n int) {
		for i := range 10 {
			s.to = serviceAt(i)
			w.wantRun(onXDP, challengeTo(w, s, w.wantRun(onXDP, s.frame(), xdpTX)).frame(), xdpDrop)
			w.wantRun(onXDP, s.frame(), xdpDrop)
			if w.g.ServiceState(s.to) == Waking {
				n++
			}
			w.g.Refuse(s.to)
		}
		return n
	}
	if n := wakes(w.syn(1000)); n != 5 || w.counted()["over_budget"] != 5 {
		t.Errorf("%d wakes by one /24, want 5; counted %v", n, w.counted())
	}
	over := e.await(t, EventOverBudget, 1)[0]
	if over.Service != serviceAt(5) || over.Scope != WakesProven || !over.Source.Contains(client.Addr()) {
		t.Errorf("reported %+v", over)
	}
	if n := wakes(strangers(w, 5, false)); n != 5 {
		t.Errorf("%d wakes by another /24, want 5", n)
	}
}

// refillBudgets fills the budgets.
func (w *world) refillBudgets() {
	w.Helper()
	w.must(w.g.objs.WakeLimits.Put(uint32(0), gateNodeLimits{}))
	var k uint32
	var v uint64
	it := w.g.objs.SourceBudgets.Iterate()
	for it.Next(&k, &v) {
		if v != 0 {
			w.must(w.g.objs.SourceBudgets.Put(k, uint64(0)))
		}
	}
	w.must(it.Err())
}

// A budget that is spent has one more after its interval.
func TestBudgetRefills(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.WakeBudgets = WakeBudgets{Service: Budget{1, 1000}} })
	w.proving(vip, ProofNever)
	for i := range 5 {
		eventually(t, func() error {
			w.run(onXDP, strangers(w, i, false).frame())
			if w.g.ServiceState(vip) != Waking {
				return fmt.Errorf("wake %d: the budget does not refill", i)
			}
			return nil
		})
		w.g.Refuse(vip)
	}
}

// A waking service keeps few SYNs of unproven clients, and those of proven ones up to its limits.
func TestUnprovenSYNsAreFew(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.WakeBudgets = WakeBudgets{Parked: 8} })
	w.proving(vip, ProofAuto)
	for i := range 50 {
		w.run(onXDP, strangers(w, i, false).frame())
	}
	w.wantParked(8, 8)
	for i := range 50 {
		s := w.syn(1000).fromOther(byte(i), 1000)
		w.wantRun(onXDP, challengeTo(w, s, w.wantRun(onXDP, s.frame(), xdpTX)).frame(), xdpDrop)
		w.wantRun(onXDP, s.frame(), xdpDrop)
	}
	w.wantParked(58, 58)
	if c := w.counted(); c["challenges"] != 42+50 || c["proven"] != 50 {
		t.Errorf("counted %v", c)
	}
}

// ageRepeats makes the last SYN of all challenged clients older.
func (w *world) ageRepeats(by time.Duration) {
	w.Helper()
	keys, values := make([]uint32, gateLimitREPEATED_SYNS), make([]gateRepeatedSyn, gateLimitREPEATED_SYNS)
	n, err := w.g.objs.RepeatedSyns.BatchLookup(&ebpf.MapBatchCursor{}, keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		w.Fatal(err)
	}
	for i, r := range values[:n] {
		if r.At != 0 {
			r.At -= uint64(by)
			w.must(w.g.objs.RepeatedSyns.Put(keys[i], r))
		}
	}
}

// The SYN of a client that gets no challenge is admitted when it has come a fourth time, as TCP repeats it.
func TestRepeatedSYNIsAdmitted(t *testing.T) {
	w := newWorld(t, nil)
	w.proving(vip, ProofAlways)
	s := w.syn(1000)
	for range 3 {
		// At once, it is not a repeat.
		for range 5 {
			w.wantRun(onXDP, s.frame(), xdpTX)
		}
		w.ageRepeats(time.Second)
	}
	w.wantParked(0, 0)
	w.wantRun(onXDP, s.frame(), xdpDrop)
	w.wantParked(1, 1)
	if c := w.counted(); c["unproven"] != 1 {
		t.Errorf("counted %v", c)
	}
	// Another SYN of the same client begins anew, and so does one that was forgotten.
	w.wantRun(onXDP, w.syn(2000).fromOther(9, 9).frame(), xdpTX)
	for range 5 {
		w.ageRepeats(time.Minute)
		w.wantRun(onXDP, w.syn(2000).fromOther(9, 9).frame(), xdpTX)
	}
}

// A SYN that another CPU admits while the service is waking does not wake it again once the daemon has refused that
// wake: it was not charged to a budget.
func TestRefusedWakesStayWithinTheBudget(t *testing.T) {
	const budget = 2000
	w := newWorld(t, func(c *Config) { c.WakeBudgets = WakeBudgets{Service: Budget{budget, 1.0 / 3600}, Parked: 64} })
	w.proving(vip, ProofAuto)
	var over atomic.Bool
	var group sync.WaitGroup
	for cpu := range 2 {
		group.Go(func() {
			for i := uint32(0); !over.Load(); i++ {
				from := w.syn(i).fromOther(byte(i), uint16(1024+cpu<<14+int(i)%(1<<14)))
				w.run(onXDP, from.frame())
			}
		})
	}
	// The budget is spent once no SYN wakes the service for a while.
	for last := time.Now(); time.Since(last) < time.Second; {
		if w.g.ServiceState(vip) == Waking {
			w.g.Refuse(vip)
			last = time.Now()
		}
	}
	over.Store(true)
	group.Wait()
	// A wake is charged twice if two CPUs find the service cold at the same time.
	if c := w.g.ServiceCounters(vip); c.Wakes > budget || c.Wakes < budget*9/10 {
		t.Errorf("%d wakes, want the budget of %d", c.Wakes, budget)
	}
}

// sleep makes vip sleep, all of whose pods are in pods.
func (w *world) sleep(pods ...uint64) {
	w.Helper()
	w.g.DrainAll(vip)
	for _, id := range pods {
		w.must(w.g.Drain(vip, id))
	}
	for _, id := range pods {
		w.must(w.g.RemovePod(vip, id))
	}
}

// While all pods drain, the SYN of a client is parked once it has proven where it is, and a forged one never.
func TestDrainingPodsAreKeptByProvenClientsOnly(t *testing.T) {
	all := newWorld(t, nil)
	for _, proof := range []Proof{ProofAuto, ProofAlways, ProofNever} {
		w := all.in(t)
		w.forgetProofs()
		w.proving(vip, proof)
		w.addPod(vip, 1)
		w.serve(vip, 1)
		w.g.DrainAll(vip)
		w.must(w.g.Drain(vip, 1))
		s := w.syn(1000)
		if proof == ProofNever {
			w.wantRun(onXDP, s.frame(), xdpDrop)
			w.wantParked(1, 1)
			continue
		}
		// Not even one that is repeated for long enough: its client goes on after the drain.
		for range 6 {
			w.wantRun(onXDP, s.frame(), xdpTX)
			w.ageRepeats(time.Second)
		}
		w.wantParked(0, 0)
		if state := w.g.ServiceState(vip); state != Cold {
			t.Errorf("proof %d: state %d after unproven SYNs", proof, state)
		}
		w.proving(vip, proof) // the manifest changes meanwhile
		answer := challengeTo(w, s, w.wantRun(onXDP, s.frame(), xdpTX))
		w.wantRun(onXDP, answer.frame(), xdpDrop)
		w.wantRun(onXDP, s.frame(), xdpDrop)
		w.wantParked(1, 1)
		if state := w.g.ServiceState(vip); state != Waking {
			t.Errorf("proof %d: state %d after a proven SYN", proof, state)
		}
	}
}

// A service that was woken without a connection coming of it asks the next client for a proof. One that was used, or
// that another node's clients have woken, does not.
func TestWakeInVainRaisesDoubt(t *testing.T) {
	all := newWorld(t, nil)
	wake := func(w *world) {
		w.Helper()
		w.wantRun(onXDP, w.syn(1000).frame(), xdpDrop)
		w.addPod(vip, 1)
		w.serve(vip, 1)
	}
	for name, c := range map[string]struct {
		life    func(w *world)
		doubted bool
	}{
		"woken in vain":    {func(w *world) { wake(w); w.sleep(1) }, true},
		"not by this gate": {func(w *world) { w.warm(vip, 1); w.sleep(1) }, false},
		"used": {func(w *world) {
			wake(w)
			w.connect(5000, 7000)
			w.sleep(1)
		}, false},
		"used through a pod that is gone": {func(w *world) {
			wake(w)
			w.connect(5000, 7000)
			w.addPod(vip, 2)
			w.serve(vip, 2)
			w.must(w.g.RemovePod(vip, 1))
			w.sleep(2)
		}, false},
		"crashed": {func(w *world) { wake(w); w.must(w.g.RemovePod(vip, 1)) }, false},
		"used after a wake in vain": {func(w *world) {
			wake(w)
			w.sleep(1)
			w.warm(vip, 1)
			w.connect(5000, 7000)
			w.sleep(1)
		}, false},
		"not used after a wake in vain": {func(w *world) {
			wake(w)
			w.sleep(1)
			s := w.syn(3000).fromOther(7, 3000)
			w.wantRun(onXDP, challengeTo(w, s, w.wantRun(onXDP, s.frame(), xdpTX)).frame(), xdpDrop)
			w.wantRun(onXDP, s.frame(), xdpDrop)
			w.warm(vip, 1)
			w.sleep(1)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := all.in(t)
			w.forgetProofs()
			cold(w)
			c.life(w)
			var verdict uint32 = xdpDrop
			if c.doubted {
				verdict = xdpTX
			}
			w.wantRun(onXDP, w.syn(9000).fromOther(9, 9).frame(), verdict)
		})
	}
}

// A doubted service admits a SYN for its repeats, as its client's network may swallow challenges, but few of them.
func TestRepeatsWakeADoubtedServiceRarely(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.WakeBudgets = WakeBudgets{Service: Budget{64, 1.0 / 3600}} })
	cold(w)
	w.wantRun(onXDP, w.syn(1000).frame(), xdpDrop)
	admitted := 0
	for range 3 {
		w.addPod(vip, 1)
		w.serve(vip, 1)
		w.sleep(1)
		s := w.syn(2000).fromOther(9, 9)
		for range 12 {
			if v, _ := w.run(onXDP, s.frame()); v == xdpDrop {
				admitted++
				break
			}
			w.ageRepeats(time.Second)
		}
	}
	// Each costs as much as 32 wakes, and one wake has gone before.
	if admitted != 1 {
		t.Errorf("%d of 3 repeated SYNs have woken the service, want one", admitted)
	}
}
