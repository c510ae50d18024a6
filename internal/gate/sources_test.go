// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"wangell.loutres.me/internal/decide/sources"
)

// restricted adds a cold service that only some sources may use: a prefix is allowed, one with a "-" denied.
func (w *world) restricted(a netip.AddrPort, rules ...string) {
	w.Helper()
	s := Service{Addr: a, MaxParked: 100, MaxParkedPerSource: 100, Restricted: true}
	for _, r := range rules {
		allow := r[0] != '-'
		if !allow {
			r = r[1:]
		}
		s.Sources = append(s.Sources, sources.Rule{Prefix: netip.MustParsePrefix(r), Allow: allow})
	}
	_, err := w.g.SetService(s)
	w.must(err)
}

// ruleCount returns how many rules the gate has for all services.
func (w *world) ruleCount() (n int) {
	w.Helper()
	var k gateSourceRuleKey
	var v uint32
	it := w.g.objs.SourceRules.Iterate()
	for it.Next(&k, &v) {
		n++
	}
	w.must(it.Err())
	return n
}

// The SYN of a source that may not connect is dropped wherever it comes in: nothing is parked, woken or sent to a pod.
func TestOnlyAllowedSourcesReachAService(t *testing.T) {
	all := newWorld(t, nil)
	for _, on := range []program{onXDP, onNIC, onLocal, onPod2} {
		t.Run(on.String(), func(t *testing.T) {
			w := all.in(t)
			e := w.events()
			w.restricted(vip, "10.46.200.0/24", "-10.46.200.16/28", "10.46.200.20/32")
			if on == onPod2 {
				// Of an address that is not routed to it, a pod's SYN is for the stack to judge.
				w.untouched(on, w.syn(1000).frame())
				sh(t, "ip route add 10.46.200.0/24 dev pod2; ip route del %v metric 9999", client.Addr())
			}
			for host, allowed := range map[byte]bool{10: true, 16: false, 20: true, 21: false, 31: false, 32: true} {
				s, _, dropped := synAt(w, on)
				s = s.fromOther(host, 1000+uint16(host))
				before := w.g.ServiceCounters(vip)
				w.wantRun(on, s.frame(), dropped)
				after := w.g.ServiceCounters(vip)
				parked, denied := after.Parked == before.Parked+1, after.Denied == before.Denied+1
				if parked != allowed || denied == allowed {
					t.Errorf("source %d: %+v, then %+v; want allowed %v", host, before, after, allowed)
				}
			}
			got := e.await(t, EventDenied, 1)
			if len(got) != 1 || got[0].Service != vip || got[0].Source.Bits() != 32 ||
				got[0].Source.Addr().As4()[3]&^15 != 16 {
				t.Errorf("%+v", got)
			}
			w.must(w.g.RemoveService(vip))
			if n := w.ruleCount(); n != 0 {
				t.Errorf("%d rules of a service that is gone", n)
			}
		})
	}
}

// Rules apply to new connections. A change takes effect for the next SYN; a rule that is lifted costs nothing.
func TestRulesApplyToNewConnections(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	w.restricted(vip, "192.0.2.0/24")
	w.toPod(1, dataFrame(w), w.wantRun(onNIC, dataFrame(w), tcxRedirect))
	next := w.syn(7000).fromOther(10, 2000)
	w.wantRun(onNIC, next.frame(), tcxDrop)
	w.restricted(vip, "0.0.0.0/0", "-10.46.200.10/32")
	w.wantRun(onNIC, next.frame(), tcxDrop)
	w.restricted(vip, "10.46.200.10/32")
	w.wantRun(onNIC, next.frame(), tcxRedirect)
	w.restricted(vip)
	w.wantRun(onNIC, w.syn(8000).fromOther(10, 2001).frame(), tcxDrop)
	w.service(vip, 100, 100)
	w.wantRun(onNIC, w.syn(8000).fromOther(10, 2001).frame(), tcxRedirect)
	if n := w.ruleCount(); n != 0 {
		t.Errorf("%d rules without a service", n)
	}
	if c := w.g.ServiceCounters(vip); c.Denied != 3 {
		t.Errorf("%+v, want 3 denied", c)
	}
}

// A SYN that was parked before its source was forbidden goes nowhere.
func TestAParkedSYNOfASourceThatIsForbiddenIsDropped(t *testing.T) {
	w := newWorld(t, nil)
	w.restricted(vip, "10.46.200.0/24")
	for host := byte(10); host < 14; host++ {
		w.wantRun(onNIC, w.syn(1000).fromOther(host, 1000).frame(), tcxDrop)
	}
	w.restricted(vip, "10.46.200.12/31")
	w.addPod(vip, 1)
	if n := w.serve(vip, 1); n != 2 {
		t.Errorf("%d released, want 2", n)
	}
	if c := w.g.ServiceCounters(vip); c.ParkedNow != 0 || c.Released != 2 || c.Denied != 2 {
		t.Errorf("%+v", c)
	}
}

// Rules that the kernel does not take refuse all sources, rather than none.
func TestRulesThatCannotBeWrittenRefuseAllSources(t *testing.T) {
	w := newWorld(t, nil)
	w.restricted(vip, "10.46.200.0/24", "2001:db8::/120")
	w.wantRun(onNIC, synFrame(w), tcxDrop)
	if c := w.g.ServiceCounters(vip); c.Denied != 1 || c.Parked != 0 || w.ruleCount() != 0 {
		t.Errorf("%+v, %d rules", c, w.ruleCount())
	}
}

// While no daemon runs, and when the next one begins, the rules are in force. Those of no service are removed.
func TestRulesOutliveTheDaemon(t *testing.T) {
	w, cfg := newReopened(t)
	t.Cleanup(func() {
		w.must(w.g.Close())
		w.must(Remove(cfg.Dir))
	})
	w.restricted(vip, "192.0.2.0/24", "198.51.100.0/24")
	w.restricted(vip2, "0.0.0.0/0")
	stray := sources.Rule{Prefix: netip.MustParsePrefix("10.0.0.0/8")}
	w.must(w.g.objs.SourceRules.Put(toRuleKey(77, stray), uint32(1)))
	w.must(w.g.Close())

	var err error
	w.g, err = Open(cfg)
	w.must(err)
	w.wantRun(onNIC, synFrame(w), tcxDrop)
	if c := w.g.ServiceCounters(vip); c.Denied != 1 || w.ruleCount() != 3 {
		t.Errorf("%+v, %d rules; want 1 denied and 3 rules", c, w.ruleCount())
	}
	w.restricted(vip, "192.0.2.0/24", "198.51.100.0/24") // as the controller sends it again
	w.must(w.g.RemoveService(vip2))
	if n := w.ruleCount(); n != 2 {
		t.Errorf("%d rules, want 2", n)
	}
}

// Until the client of a service with rules has answered its pod, replies go by the node's routes, whichever neighbor
// sends the client's segments; then to that neighbor. (The kernel fills in the MAC addresses of a route later.)
func TestHandshakesWithRulesGoByRoute(t *testing.T) {
	attacker := podMAC[3]
	forged := func(s segment) []byte { s.src = attacker; return s.frame() }
	for _, remote := range []bool{false, true} {
		for _, flooded := range []bool{false, true} {
			t.Run(fmt.Sprintf("remote %v, flooded %v", remote, flooded), func(t *testing.T) {
				w := newRemoteWorld(t, func(c *Config) { c.Sizes.Ring = 4 })
				if remote {
					w.remote()
				} else {
					w.warm(vip, 1)
				}
				w.restricted(vip, "10.46.200.0/24")
				if flooded {
					w.crowd()
				}
				reply := func(s segment) []byte {
					if !remote {
						return w.wantRun(onPod1, s.frame(), tcxRedirect)
					}
					return w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, w.asSent(s).frame()), tcxRedirect)
				}
				byRoute := func(s segment) {
					t.Helper()
					if out := reply(s); bytes.Equal(out[:6], clientMAC) || bytes.Equal(out[:6], attacker) {
						t.Errorf("%s %d goes to %x", s.flags, s.seq, out[:6])
					}
				}
				w.wantRun(onNIC, forged(w.syn(1000)), tcxRedirect)
				byRoute(w.fromPod(1, "SA", 5000, 1001))
				// A pod answers these with its number.
				w.wantRun(onNIC, forged(w.syn(1000)), tcxRedirect)
				if !flooded {
					w.wantRun(onNIC, forged(w.fromClient("A", 1<<31, 77)), tcxRedirect)
					byRoute(w.fromPod(1, "A", 5001, 1001))
					byRoute(w.fromPod(1, "SA", 5000, 1001))
					w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
					if out := reply(podData(w)); !bytes.Equal(out[:6], clientMAC) {
						t.Errorf("a reply to the client goes to %x", out[:6])
					}
					return
				}
				// The first has an entry from now on.
				for _, seq := range []uint32{1001, 1 << 31} {
					w.wantRun(onNIC, forged(w.fromClient("A", seq, 77)), tcxRedirect)
					byRoute(w.fromPod(1, "A", 5001, 1001))
				}
			})
		}
	}
}
