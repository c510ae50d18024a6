// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"testing"
	"time"
)

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
