// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// retries sets vip's limit on further pods.
func (w *world) retries(n uint8) {
	w.Helper()
	_, err := w.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Retries: n})
	w.must(err)
}

// refusal is the RST with which pod i refuses client's SYN.
func (w *world) refusal(i int) []byte { return w.fromPod(i, "RA", 0, 1001).frame() }

// sameSYN checks that out is the SYN in, sent to pod i.
func (w *world) sameSYN(in, out []byte, i int) {
	w.Helper()
	want := bytes.Clone(in)
	want[18], want[19] = 0, 0 // the identification is meaningless without fragments (RFC 6864)
	sum := fold16(sum16(0, want[14:24]) + sum16(0, want[26:34]))
	binary.BigEndian.PutUint16(want[24:], ^sum)
	w.toPod(i, want, out)
}

// answered makes pods of vip ones that have answered a SYN before.
func (w *world) answered(pods ...int) {
	w.Helper()
	for _, i := range pods {
		w.g.pods.at(w.podIndex(i)).FirstSynack = 1
	}
}

// It is tried at one pod after another, unchanged. The client only sees the last refusal.
func TestRefusedSYNGoesToAnotherPod(t *testing.T) {
	all := newWorld(t, nil)
	for _, c := range []struct {
		pods    []int
		retries uint8
		moves   int
	}{{[]int{1, 2, 3}, 5, 2}, {[]int{1, 2, 3}, 1, 1}, {[]int{1, 2, 3}, 0, 0}, {[]int{1}, 5, 0}} {
		t.Run(fmt.Sprintf("%d pods, %d retries", len(c.pods), c.retries), func(t *testing.T) {
			w := all.in(t)
			w.warm(vip, c.pods...)
			w.answered(c.pods...)
			w.retries(c.retries)
			w.before = w.counters()
			syn := w.syn(1000)
			out := w.wantRun(onNIC, syn.frame(), tcxRedirect)
			seen := map[int]bool{}
			at := podOf(t, out)
			for range c.moves {
				seen[at] = true
				// The client's retransmission goes to the present pod.
				if again := podOf(t, w.wantRun(onNIC, syn.frame(), tcxRedirect)); again != at {
					t.Errorf("retransmitted, it went to pod %d instead of %d", again, at)
				}
				out = w.wantRun(onPod1+program(at-1), w.refusal(at), tcxRedirect)
				if o, h, n := w.counts(vip, at); o != 0 || h != 0 || n != 0 {
					t.Errorf("pod %d after its refusal: %d, %d, %d", at, o, h, n)
				}
				at = podOf(t, out)
				if seen[at] {
					t.Fatalf("pod %d got it twice", at)
				}
				w.sameSYN(syn.frame(), out, at)
				if _, h, _ := w.counts(vip, at); h != 1 {
					t.Errorf("pod %d: %d half-open", at, h)
				}
			}
			if got := w.counted()["retries"]; got != uint64(c.moves) {
				t.Errorf("counted %d retries, want %d", got, c.moves)
			}
			f := w.refusal(at)
			w.toClient(f, w.wantRun(onPod1+program(at-1), f, tcxRedirect))
			if f, _ := w.flow(client, vip); f.State != closed {
				t.Errorf("state %d", f.State)
			}
			for _, i := range c.pods {
				if o, h, n := w.counts(vip, i); o != 0 || h != 0 || n != 0 {
					t.Errorf("pod %d in the end: %d, %d, %d", i, o, h, n)
				}
			}
		})
	}
}

func TestOnlyARefusalMovesAFlow(t *testing.T) {
	all := newWorld(t, nil)
	for name, steps := range map[string]func(w *world, pod int){
		"forged, of another SYN": func(w *world, pod int) {
			w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "RA", 0, 999).frame(), tcxRedirect)
		},
		"after the syn-ack": func(w *world, pod int) {
			w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "SA", 5000, 1001).frame(), tcxRedirect)
			w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "RA", 5001, 1001).frame(), tcxRedirect)
		},
		"established": func(w *world, pod int) {
			w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "SA", 5000, 1001).frame(), tcxRedirect)
			w.wantRun(onNIC, w.fromClient("A", 1001, 5001).frame(), tcxRedirect)
			w.wantRun(onPod1+program(pod-1), w.fromPod(pod, "RA", 5001, 1001).frame(), tcxRedirect)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := all.in(t)
			w.warm(vip, 1, 2)
			w.retries(5)
			pod := podOf(t, w.wantRun(onNIC, synFrame(w), tcxRedirect))
			w.before = w.counters()
			steps(w, pod)
			if f, _ := w.flow(client, vip); f.Pod != w.podIndex(pod) || w.counted()["retries"] != 0 {
				t.Errorf("flow %+v, counted %v", f, w.counted())
			}
		})
	}
}

// It has the same options, of any length, window and ECN bits.
func TestRetriedSYNIsTheSame(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1, 2)
	w.retries(1)
	for n := 0; n <= 40; n += 4 {
		s := w.syn(1000)
		s.from = netip.AddrPortFrom(client.Addr(), uint16(2000+n))
		s.options, s.window = nil, uint16(1+n*1000)
		f := s.frame()[:54]
		f = append(f, bytes.Repeat([]byte{1}, n)...)
		if n >= 12 {
			copy(f[54:], []byte{2, 4, 5, 0xb4, 1, 3, 3, 9, 4, 2, 1, 1})
		}
		f[46] = byte(5+n/4) << 4
		f[47] |= 0xc0 // ECE, CWR (RFC 3168)
		f[15] = 0xb8
		binary.BigEndian.PutUint16(f[16:], uint16(40+n))
		f[24], f[25] = 0, 0
		binary.BigEndian.PutUint16(f[24:], ^fold16(sum16(0, f[14:34])))
		setTCPSum(f[14:])
		pod := podOf(t, w.wantRun(onNIC, f, tcxRedirect))
		r := w.fromPod(pod, "RA", 0, 1001)
		r.to = s.from
		w.sameSYN(f, w.wantRun(onPod1+program(pod-1), r.frame(), tcxRedirect), 3-pod)
		if fl, _ := w.flow(s.from, vip); n >= 12 && fl.Wscale[0] != 9 {
			t.Errorf("window scale %d", fl.Wscale[0])
		}
	}
}

// It requests a wake.
func TestRefusedSYNOfAColdServiceIsParked(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1)
	w.retries(1)
	ev := w.events()
	w.wantRun(onNIC, synFrame(w), tcxRedirect)
	w.must(w.g.Drain(vip, 1))
	w.wantRun(onPod1, w.refusal(1), tcxDrop)
	ev.await(t, EventWake, 1)
	w.wantParked(1, 1)
	if _, ok := w.flow(client, vip); ok {
		t.Error("the flow remains")
	}
	w.addPod(vip, 2)
	await := podNamespace(t, w, 2)
	if n := w.serve(vip, 2); n != 1 {
		t.Errorf("%d released", n)
	}
	frames := await(1)
	if got := frames[0]; binary.BigEndian.Uint32(got[38:]) != 1000 || got[47] != 2 {
		t.Errorf("released: %x", got)
	}
	if o, h, _ := w.counts(vip, 2); o != 0 || h != 1 {
		t.Errorf("%d open, %d half-open", o, h)
	}
}

// scan searches the rings like the daemon after some time. The first round only finds which slots are written.
func (w *world) scan(after time.Duration) (left bool) {
	w.Helper()
	w.g.scanRings(monotime.Now())
	return w.g.scanRings(monotime.Now().Add(after))
}

// It does so after the timeout, and not before.
func TestUnansweredSYNGoesToAnotherPod(t *testing.T) {
	w := newWorld(t, nil)
	w.warm(vip, 1, 2)
	w.retries(1)
	first := podOf(t, w.wantRun(onNIC, synFrame(w), tcxRedirect))
	answered := w.syn(7).fromOther(9, 9)
	pod := podOf(t, w.wantRun(onNIC, answered.frame(), tcxRedirect))
	reply := w.fromPod(pod, "SA", 1, 8)
	reply.to = answered.from
	w.wantRun(onPod1+program(pod-1), reply.frame(), tcxRedirect)
	if left := w.scan(DefaultSYNTimeout / 2); !left {
		t.Error("no SYN is pending")
	}
	if f, _ := w.flow(client, vip); f.Pod != w.podIndex(first) {
		t.Error("moved before the timeout")
	}
	w.scan(2 * DefaultSYNTimeout)
	eventually(t, func() error { // the frame passes through a device
		if f, _ := w.flow(client, vip); f.Pod != w.podIndex(3-first) {
			return errors.New("the SYN was not sent to another pod")
		}
		return nil
	})
	if f, _ := w.flow(answered.from, vip); f.Pod != w.podIndex(pod) {
		t.Error("an answered SYN was moved")
	}
	w.scan(10 * DefaultSYNTimeout)
	if left := w.scan(10 * DefaultSYNTimeout); left {
		t.Error("a SYN is still pending")
	}
	if got := w.counted()["retries"]; got != 1 {
		t.Errorf("counted %d retries", got)
	}
	// The first pod answers after all: it gets a RST, and the client gets nothing.
	late := w.fromPod(first, "SA", 5000, 1001)
	resetTo(t, late, w.wantRun(onPod1+program(first-1), late.frame(), tcxRedirect))
	// The new one's answer goes to the client.
	ok := w.fromPod(3-first, "SA", 6000, 1001).frame()
	w.toClient(ok, w.wantRun(onPod1+program(2-first), ok, tcxRedirect))
}

// The first unanswered SYN wakes it.
func TestSYNWatchSleepsWithoutHalfOpenFlows(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.SYNTimeout = 20 * time.Millisecond })
	w.warm(vip, 1, 2)
	w.retries(1)
	w.events()
	for i := range 3 {
		eventually(t, func() error {
			if w.g.watch.at(0).On != 0 {
				return errors.New("the watch does not sleep")
			}
			return nil
		})
		s := w.syn(1000).fromOther(byte(i), 1)
		first := podOf(t, w.wantRun(onNIC, s.frame(), tcxRedirect))
		eventually(t, func() error {
			if f, _ := w.flow(s.from, vip); f.Pod != w.podIndex(3-first) {
				return errors.New("the SYN was not sent to another pod")
			}
			return nil
		})
	}
}

// The edge node moves it on the home node's word, to a pod here or on another node.
func TestRefusalByARemotePodMovesTheSYN(t *testing.T) {
	all := newRemoteWorld(t, nil)
	refused := func(w *world, pod int) []byte {
		return w.wrap(otherNode, toClientType, closes, uint64(pod), w.asSent(w.fromPod(pod, "RA", 0, 1001)).frame())
	}
	t.Run("to a pod here", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.retries(2)
		syn := w.syn(1000).frame()
		w.wantRun(onNIC, syn, tcxRedirect)
		w.addPod(vip, 2)
		w.serve(vip, 2)
		w.sameSYN(syn, w.wantRun(onNIC, refused(w, 1), tcxRedirect), 2)
		w.wantCounts(0, 0, 0)
		// A late answer of the first pod gets a RST.
		late := w.asSent(w.fromPod(1, "SA", 5000, 1001))
		f := late.frame()
		like := append(bytes.Clone(f[6:12]), f[:6]...)
		resetTo(t, late,
			w.unwrap(w.wantRun(onNIC, w.wrap(otherNode, toClientType, 0, 1, f), tcxRedirect), toPodType, 0, 1,
				append(like, f[12:]...)))
		// The second pod refuses as well: the client gets the RST.
		w.answered(2)
		r := w.refusal(2)
		w.toClient(r, w.wantRun(onPod2, r, tcxRedirect))
	})
	t.Run("from here to the other node", func(t *testing.T) {
		w := all.in(t)
		w.warm(vip, 2)
		w.retries(1)
		syn := w.syn(1000)
		w.wantRun(onNIC, syn.frame(), tcxRedirect)
		w.addRemote(1)
		w.serve(vip, 1)
		r := w.refusal(2)
		got := w.unwrap(w.wantRun(onPod2, r, tcxRedirect), toPodType, 0, 1, r)
		if _, tcp := tcpOf(t, decode(t, got)); !tcp.SYN || tcp.ACK || tcp.Seq != 1000 || sourceOf(got) != client ||
			destinationOf(got) != vip || mssOf(t, got) != 1420 {
			t.Errorf("became\n%v", dump(got))
		}
		w.wantCounts(0, 1, 0)
	})
	t.Run("without another pod", func(t *testing.T) {
		w := all.in(t)
		w.remote()
		w.answered(1)
		w.retries(2)
		w.wantRun(onNIC, synFrame(w), tcxRedirect)
		out := w.wantRun(onNIC, refused(w, 1), tcxRedirect)
		if !bytes.Equal(out[:6], clientMAC) || out[47] != 0x14 {
			t.Errorf("%x", out)
		}
		w.wantCounts(0, 0, 0)
		if f, _ := w.flow(client, vip); f.State != closed {
			t.Errorf("state %d", f.State)
		}
	})
}

// serveOne runs a server that answers each connection with a byte that identifies it, and closes.
func serveOne(t testing.TB, ns string, at netip.AddrPort, name byte) net.Listener {
	t.Helper()
	return serveIn(t, ns, at, func(c net.Conn) { _, _ = c.Write([]byte{name}) })
}

// answerOf connects and returns the byte of the server that answered.
func answerOf(ns string, to netip.AddrPort) (byte, error) {
	c, err := dial(ns, to)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return 0, err
	}
	b, err := io.ReadAll(c)
	if err != nil || len(b) != 1 {
		return 0, fmt.Errorf("%d bytes: %w", len(b), err)
	}
	return b[0], nil
}

// Of three pods on two nodes, one does not listen and one's host drops everything. No client notices.
func TestClientsDoNotNoticeBadPods(t *testing.T) {
	c := newCluster(t, 1500)
	for i, at := range []*node{nil, c.home, c.home, c.edge} {
		if i > 0 {
			c.podNet(at, i, 1500)
			c.addPod(vip, at, i)
			c.serve(vip, i)
		}
	}
	for _, n := range []*node{c.edge, c.home} {
		_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Retries: 2})
		c.must(err)
	}
	c.plainPod(1500)
	const each = 20
	run := func(name string, good byte, moved bool) {
		t.Helper()
		before := counted(t, c.edge.g)["retries"]
		for _, ns := range []string{"client", "edge", "plain"} {
			errs := make(chan error, each)
			for range each {
				go func() {
					who, err := answerOf(ns, vip)
					if err == nil && who != good && good != 0 {
						err = fmt.Errorf("pod %d answered", who)
					}
					errs <- err
				}()
			}
			for range each {
				if err := <-errs; err != nil {
					t.Errorf("%s, %s: %v", name, ns, err)
				}
			}
		}
		if got := counted(t, c.edge.g)["retries"] - before; (got > 0) != moved {
			t.Errorf("%s: %d retries", name, got)
		}
	}
	two := serveOne(t, podNS(2), podAt[2], 2)
	sh(t, `ip netns exec pod1 nft 'add table ip mute
		add chain ip mute in { type filter hook input priority 0; policy drop; }'`)
	run("pod 1 is silent, pod 3 refuses", 2, true)
	two.Close()
	serveOne(t, podNS(3), podAt[3], 3)
	run("pod 1 is silent, pod 2 refuses", 3, true)
	sh(t, "ip netns exec pod1 nft delete table ip mute")
	serveOne(t, podNS(1), podAt[1], 1)
	serveOne(t, podNS(2), podAt[2], 2)
	for i := 2; i <= 3; i++ { // the gates have found them deaf; their daemons see that they listen
		c.serve(vip, i)
	}
	run("all listen", 0, false)
	eventually(t, func() error {
		for _, n := range []*node{c.edge, c.home} {
			for i := uint64(1); i <= 3; i++ {
				if p, err := n.g.PodCounters(vip, i); err != nil || p.Open != 0 {
					return fmt.Errorf("%s: pod %d: %d open: %v", n.name, i, p.Open, err)
				}
			}
		}
		return nil
	})
	// If every pod refuses, the client is refused at once.
	for i := uint64(1); i <= 2; i++ {
		for _, n := range []*node{c.edge, c.home} {
			c.must(n.g.Drain(vip, i))
		}
	}
	sh(t, `ip netns exec pod3 nft 'add table ip no
		add chain ip no in { type filter hook input priority 0; }
		add rule ip no in tcp dport 8080 reject with tcp reset'`)
	if _, err := answerOf("client", vip); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("no pod listens: %v", err)
	}
}

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

// A pod that has answered no SYN yet may refuse one because what its network namespace leads clients to is not ready.
// The SYN waits, and is sent to the pod again and again. A minute later, a refusal is one.
func TestRefusalOfAStartingPodIsNotPassedOn(t *testing.T) {
	all := newWorld(t, nil)
	for _, retries := range []uint8{0, 2} {
		t.Run(fmt.Sprintf("%d retries", retries), func(t *testing.T) {
			w := all.in(t)
			w.warm(vip, 1)
			w.retries(retries)
			w.wantRun(onNIC, synFrame(w), tcxRedirect)
			for round := range uint64(4) {
				w.wantRun(onPod1, w.refusal(1), tcxDrop)
				if f, ok := w.flow(client, vip); !ok || f.State != half {
					t.Fatalf("round %d: flow %+v, %v", round, f, ok)
				}
				w.scan(2 * DefaultSYNTimeout)
				eventually(t, func() error { // the frame passes through a device
					if got := w.counted()["retries"]; got != round+1 {
						return fmt.Errorf("round %d: the SYN was sent again %d times", round, got)
					}
					return nil
				})
			}
			w.wantCounts(0, 1, 0)
			w.g.pods.at(w.podIndex(1)).Served -= uint64(time.Minute)
			f := w.refusal(1)
			w.toClient(f, w.wantRun(onPod1, f, tcxRedirect))
			w.wantCounts(0, 0, 0)
		})
	}
	t.Run("another pod serves", func(t *testing.T) {
		w := all.in(t)
		w.warm(vip, 1)
		w.retries(1)
		w.wantRun(onNIC, synFrame(w), tcxRedirect)
		w.wantRun(onPod1, w.refusal(1), tcxDrop)
		w.addPod(vip, 2)
		w.serve(vip, 2)
		w.scan(2 * DefaultSYNTimeout)
		eventually(t, func() error {
			if f, _ := w.flow(client, vip); f.Pod != w.podIndex(2) {
				return errors.New("the SYN was not sent to the other pod")
			}
			return nil
		})
	})
}

// The packet filter in a pod redirects its port to a sidecar, which listens later than the program: the client waits.
func TestClientsWaitForASidecar(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	n.service()
	echo(n, podNS(1), podAt[1])
	sh(t, `ip netns exec pod1 nft 'table ip nat {
		chain pre { type nat hook prerouting priority dstnat;
			tcp dport %d redirect to :15006
		}
	}'`, podAt[1].Port())
	n.addPod(vip, 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	done := visit("client", vip, 1000)
	eventually(t, func() error {
		if got := counted(t, n.g)["retries"]; got < 2 {
			return fmt.Errorf("the SYN was sent again %d times", got)
		}
		return nil
	})
	echo(n, podNS(1), netip.AddrPortFrom(podAt[1].Addr(), 15006))
	n.must(<-done)
}
