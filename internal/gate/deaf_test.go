// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// watchListen makes a gate follow the listening sockets of a pod of vip in a network namespace.
func watchListen(t testing.TB, g *Gate, ns string, id uint64) {
	t.Helper()
	err := inNamespace(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err != nil {
			return err
		}
		return g.WatchListen(cookie, vip, id)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Clients that come after the pod's last listening socket was closed wait, without any user-space program. Open
// connections go on.
func TestClientsOfAPodThatStopsListeningWait(t *testing.T) {
	for name, c := range map[string]struct {
		watched   bool
		listeners []string // networks of the sockets
		at        string
	}{
		"one socket":                  {true, []string{"tcp4"}, podAt[1].String()},
		"without events of sockets":   {false, []string{"tcp4"}, podAt[1].String()},
		"two sockets of one port":     {true, []string{"tcp4", "tcp4"}, fmt.Sprint(":", podAt[1].Port())},
		"one of IPv4 and one of both": {true, []string{"tcp4", "tcp"}, fmt.Sprint(":", podAt[1].Port())},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, XDPAuto, 1500)
			_, err := n.g.SetService(Service{Addr: vip, MaxParked: 10000, MaxParkedPerSource: 10000, Proof: ProofNever})
			n.must(err)
			n.addPod(vip, 1)
			if c.watched {
				watchListen(n, n.g, podNS(1), 1)
			}
			var listeners []net.Listener
			for _, network := range c.listeners {
				listeners = append(listeners, listenShared(n, podNS(1), network, c.at))
			}
			_, err = n.g.Serve(vip, 1)
			n.must(err)
			open, err := dial("client", vip)
			n.must(err)
			defer open.Close()
			clients := newVisitors("client", "")
			clients.more(t, 50)
			for _, l := range listeners[1:] { // as long as one listens, clients connect
				clients.close(l)
				clients.more(t, 100)
			}
			if s := n.g.ServiceState(vip); s != Warm {
				t.Errorf("state %d while a socket listens", s)
			}
			clients.close(listeners[0])
			if got := n.ev.await(t, EventDeaf, 1); got[0].Service != vip || got[0].Pod != 1 {
				t.Errorf("%+v", got[0])
			}
			n.ev.await(t, EventWake, 1)
			if s, _ := n.g.PodState(vip, 1); s != PodDeaf {
				t.Errorf("pod in state %d", s)
			}
			eventually(t, func() error {
				if c := n.g.ServiceCounters(vip); c.ParkedNow < 20 {
					return fmt.Errorf("%d clients wait", c.ParkedNow)
				}
				return nil
			})
			n.must(echoes(open))
			listenShared(t, podNS(1), c.listeners[0], c.at)
			if released, err := n.g.Serve(vip, 1); err != nil || released < 20 {
				t.Errorf("released %d: %v", released, err)
			}
			clients.more(t, 50)
			clients.end(t)
			n.must(echoes(open))
		})
	}
}

// echoes sends a byte and waits for all that comes back.
func echoes(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte{7}); err != nil {
		return err
	}
	b := make([]byte, 1)
	for b[0] != 7 {
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
	}
	return nil
}

// The pod's firewall refuses clients although it listens: they are told.
func TestRefusalOfAPodThatListensReachesTheClient(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	n.service()
	n.addPod(vip, 1)
	watchListen(n, n.g, podNS(1), 1)
	listenShared(n, podNS(1), "tcp4", podAt[1].String())
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	c, err := dial("client", vip)
	n.must(err)
	n.must(c.Close())
	sh(t, `ip netns exec pod1 nft 'add table ip no
		add chain ip no in { type filter hook input priority 0; }
		add rule ip no in tcp dport 8080 reject with tcp reset'`)
	for range 3 {
		if _, err := dial("client", vip); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("refused by the pod: %v", err)
		}
	}
	if s := n.g.ServiceState(vip); s != Warm {
		t.Errorf("state %d", s)
	}
}

// With several pods, the clients of the one that stops go to the others, even if no retries are allowed.
func TestClientsOfAPodThatStopsListeningGoToAnother(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	_, err := n.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100})
	n.must(err)
	var listeners []net.Listener
	for i := 1; i <= 2; i++ {
		n.addPod(vip, i)
		watchListen(n, n.g, podNS(i), uint64(i))
		listeners = append(listeners, listenShared(n, podNS(i), "tcp4", podAt[i].String()))
		_, err = n.g.Serve(vip, uint64(i))
		n.must(err)
	}
	clients := newVisitors("client", "")
	clients.more(t, 50)
	clients.close(listeners[0])
	clients.more(t, 100)
	if c := n.g.ServiceCounters(vip); c.Parked != 0 {
		t.Errorf("%d were parked", c.Parked)
	}
	clients.end(t)
	n.must(n.g.Drain(vip, 2))
	if s := n.g.ServiceState(vip); s != Cold {
		t.Errorf("state %d without a pod that takes flows", s)
	}
}

// The home node says that its pod does not listen, and the edge node parks the SYN and those that follow.
func TestClientsOfARemotePodThatStopsListeningWait(t *testing.T) {
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	c.addPod(vip, c.home, 1)
	watchListen(c, c.home.g, podNS(1), 1)
	for _, n := range []*node{c.edge, c.home} {
		_, err := n.g.SetService(Service{Addr: vip, MaxParked: 10000, MaxParkedPerSource: 10000, Proof: ProofNever})
		c.must(err)
	}
	l := listenShared(c, podNS(1), "tcp4", podAt[1].String())
	c.serve(vip, 1)
	open, err := dial("client", vip)
	c.must(err)
	defer open.Close()
	clients := newVisitors("client", "edge")
	clients.more(t, 50)
	clients.close(l)
	for _, n := range []*node{c.edge, c.home} {
		if got := n.ev.await(t, EventDeaf, 1); got[0].Service != vip || got[0].Pod != 1 {
			t.Errorf("%s: %+v", n.name, got[0])
		}
	}
	await := func() {
		t.Helper()
		eventually(t, func() error {
			if n := c.edge.g.ServiceCounters(vip).ParkedNow; n < 20 {
				return fmt.Errorf("%d clients wait", n)
			}
			return nil
		})
	}
	await()
	if s, _ := c.edge.g.PodState(vip, 1); s != PodDeaf {
		t.Errorf("pod in state %d", s)
	}
	// Tried again in vain.
	_, err = c.edge.g.Serve(vip, 1)
	c.must(err)
	await()
	c.must(echoes(open))
	listenShared(c, podNS(1), "tcp4", podAt[1].String())
	c.serve(vip, 1)
	clients.more(t, 50)
	clients.end(t)
	c.must(echoes(open))
}

// The home node has forgotten the pod, or found it deaf: its word is the same. Whether or not other pods may be tried,
// the edge node parks the SYN.
func TestSYNThatAHomeNodeCannotDeliverIsParked(t *testing.T) {
	all := newRemoteWorld(t, nil)
	for _, retries := range []uint8{0, 2} {
		t.Run(fmt.Sprintf("%d retries", retries), func(t *testing.T) {
			w := all.in(t)
			w.remote()
			w.retries(retries)
			ev := w.events()
			w.wantRun(onNIC, synFrame(w), tcxRedirect)
			refusal := w.asSent(w.fromPod(1, "RA", 0, 1001)).frame()
			w.wantRun(onNIC, w.wrap(otherNode, toClientType, closes|left, 1, refusal), tcxDrop)
			ev.await(t, EventDeaf, 1)
			ev.await(t, EventWake, 1)
			w.wantParked(1, 1)
			if _, ok := w.flow(client, vip); ok {
				t.Error("the flow remains")
			}
		})
	}
}

// setDeaf puts pods of vip into the state in which the gate finds them if nothing listens there.
func (w *world) setDeaf(pods ...int) {
	w.Helper()
	for _, i := range pods {
		setPodState(w.g.pods.at(w.podIndex(i)), gatePodStatePOD_DEAF)
	}
}

// It may listen again, and if not, the client is answered: a service with a pod that serves parks nothing.
func TestDeafPodIsTheLastChoiceAfterASilentOne(t *testing.T) {
	all := newWorld(t, nil)
	for name, c := range map[string]struct {
		deaf    []int // pods besides the silent one that are deaf, as distances from it
		retries uint8
		moves   int
	}{
		"both others are deaf":              {[]int{1, 2}, 2, 2},
		"both others are deaf, one retry":   {[]int{1, 2}, 1, 1},
		"one of the others is deaf":         {[]int{1}, 2, 2},
		"the other of the others is deaf":   {[]int{2}, 2, 2},
		"one is deaf and one retry is left": {[]int{2}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := all.in(t)
			w.warm(vip, 1, 2, 3)
			w.answered(1, 2, 3)
			w.retries(c.retries)
			w.before = w.counters()
			syn := w.syn(1000).frame()
			silent := podOf(t, w.wantRun(onNIC, syn, tcxRedirect))
			isDeaf := map[int]bool{}
			for _, d := range c.deaf {
				pod := (silent-1+d)%3 + 1
				isDeaf[pod] = true
				w.setDeaf(pod)
			}
			w.scan(2 * DefaultSYNTimeout)
			at := 0
			eventually(t, func() error { // the frame passes through a device
				f, _ := w.flow(client, vip)
				for i := 1; i <= 3; i++ {
					if i != silent && f.Pod == w.podIndex(i) {
						at = i
						return nil
					}
				}
				return errors.New("the SYN was not sent to another pod")
			})
			if len(isDeaf) == 1 && isDeaf[at] {
				t.Errorf("a deaf pod got the SYN first")
			}
			for range c.moves - 1 {
				before := at
				out := w.wantRun(onPod1+program(at-1), w.refusal(at), tcxRedirect)
				if at = podOf(t, out); at == silent || at == before {
					t.Fatalf("pod %d got the SYN twice", at)
				}
				w.sameSYN(syn, out, at)
			}
			f := w.refusal(at)
			w.toClient(f, w.wantRun(onPod1+program(at-1), f, tcxRedirect))
			if got := w.counted()["retries"]; got != uint64(c.moves) {
				t.Errorf("counted %d retries, want %d", got, c.moves)
			}
			w.wantParked(0, 0)
		})
	}
}
