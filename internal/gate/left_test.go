// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"testing"
)

// SYNs that a draining pod leaves unanswered are judged as any others of a service without a pod: forged ones are
// parked within the budget of unproven clients, and none while all pods drain.
func TestUnansweredSYNsOfADrainingPodAreJudged(t *testing.T) {
	const forged, budget = 50, 8
	all := newWorld(t, func(c *Config) { c.WakeBudgets = WakeBudgets{Parked: budget} })
	for _, c := range []struct {
		name   string
		asleep bool // the service goes to sleep
		proof  Proof
		parked uint32
	}{
		{"a pod drains", false, ProofAuto, budget},
		{"all pods drain", true, ProofAuto, 0},
		{"always a proof", false, ProofAlways, 0},
		{"never a proof", true, ProofNever, budget},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := all.in(t)
			w.forgetProofs()
			w.warm(vip, 1)
			_, err := w.g.SetService(Service{
				Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Retries: 1, Proof: c.proof,
			})
			w.must(err)
			w.before = w.counters()
			for i := range forged {
				w.wantRun(onNIC, strangers(w, i, false).frame(), tcxRedirect)
			}
			if c.asleep {
				w.g.DrainAll(vip)
			}
			w.must(w.g.Drain(vip, 1))
			w.scan(2 * DefaultSYNTimeout)
			eventually(t, func() error { // the frames pass through a device
				n := w.counted()
				judged := uint64(w.g.ServiceCounters(vip).ParkedNow) + n["challenges"] + n["over_budget"]
				if judged != forged {
					return fmt.Errorf("%d of %d SYNs were judged: %v", judged, forged, n)
				}
				return nil
			})
			if n := w.g.ServiceCounters(vip).ParkedNow; n != c.parked {
				t.Errorf("%d SYNs are parked, want %d", n, c.parked)
			}
			if woken := w.g.ServiceState(vip) == Waking; woken != (c.parked > 0) {
				t.Errorf("woken: %v", woken)
			}
			if n := w.counted(); (c.proof == ProofNever) != (n["challenges"] == 0) {
				t.Errorf("counted %v", n)
			}
			if c.proof == ProofNever {
				return
			}
			s := w.syn(1000)
			w.wantRun(onXDP, challengeTo(w, s, w.wantRun(onXDP, s.frame(), xdpTX)).frame(), xdpDrop)
			w.wantRun(onXDP, s.frame(), xdpDrop)
			if n := w.g.ServiceCounters(vip).ParkedNow; n != c.parked+1 {
				t.Errorf("%d SYNs are parked after that of a proven client, want %d", n, c.parked+1)
			}
		})
	}
}

// The client of a SYN that the last draining pod refuses is challenged at once, where its SYN came from.
func TestClientThatADrainingPodRefusesIsChallenged(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1)
	w.retries(1)
	s := w.syn(1000)
	w.wantRun(onNIC, s.frame(), tcxRedirect)
	w.g.DrainAll(vip)
	w.must(w.g.Drain(vip, 1))
	answer := challengeTo(w, s, w.wantRun(onPod1, w.refusal(1), tcxRedirect))
	w.wantParked(0, 0)
	if _, ok := w.flow(client, vip); ok {
		t.Error("the flow remains")
	}
	w.wantRun(onXDP, answer.frame(), xdpDrop)
	w.wantRun(onXDP, s.frame(), xdpDrop)
	w.wantParked(1, 1)
}

// A genuine client whose SYN a silent pod leaves while its service goes to sleep proves where it is, and gets the next
// pod. The client is a kernel's own socket behind the interface, on the node or in a pod.
func TestClientOfASilentDrainingPodIsServed(t *testing.T) {
	for _, from := range []string{"client", "", podNS(2)} {
		t.Run("from "+from, func(t *testing.T) {
			n := newNetwork(t, XDPNative, 1500)
			sh(t, "ip route add %v dev pod2", podAt[2].Addr()) // by which challenges go
			n.service()
			_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Retries: 1})
			n.must(err)
			n.addPod(vip, 1)
			_, err = n.g.Serve(vip, 1)
			n.must(err)
			sh(t, `ip netns exec %s nft 'add table ip mute
				add chain ip mute in { type filter hook input priority 0; policy drop; }'`, podNS(1))
			visited := visit(from, vip, 100)
			eventually(t, func() error {
				if p, err := n.g.PodCounters(vip, 1); err != nil || p.HalfOpen != 1 {
					return fmt.Errorf("the SYN is not at the pod: %+v, %w", p, err)
				}
				return nil
			})
			n.g.DrainAll(vip)
			n.must(n.g.Drain(vip, 1))
			n.ev.await(t, EventWake, 1)
			w := &world{TB: t, g: n.g}
			if c := w.counters(); c["proven"] != 1 || c["unproven"] != 0 {
				t.Errorf("counters %v", c)
			}
			n.must(n.g.RemovePod(vip, 1))
			sh(t, "ip netns exec %s nft delete table ip mute", podNS(1))
			echo(t, podNS(1), podAt[1])
			n.addPod(vip, 1)
			if released, err := n.g.Serve(vip, 1); err != nil || released != 1 {
				t.Errorf("%d released: %v", released, err)
			}
			if err := <-visited; err != nil {
				t.Error(errors.Join(err, fmt.Errorf("counters %v", w.counters())))
			}
		})
	}
}
