// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/netlab"
)

// patience is longer than anything takes here, even on a busy machine.
const patience = 60 * time.Second

func TestEachPodGetsItsShareOfTheParkedSYNs(t *testing.T) {
	type serves struct {
		pods           int           // that share the SYNs, as of the last message of the controller
		serving        int           // including this one
		after          time.Duration // since the first pod
		parked, shared uint32
		rest           bool
	}
	for name, steps := range map[string][]serves{
		"three in time": {
			{3, 1, 0, 60, 20, false}, {3, 2, 9e6, 40, 20, false}, {3, 3, 30e6, 20, 20, true},
		},
		"not divisible": {
			{3, 1, 0, 40, 14, false}, {3, 2, 9e6, 26, 13, false}, {3, 3, 30e6, 13, 13, true},
		},
		"as many SYNs as pods": {{3, 1, 0, 3, 1, false}, {3, 2, 1e6, 2, 1, false}, {3, 3, 2e6, 1, 1, true}},
		"fewer SYNs than pods": {{3, 1, 0, 2, 1, false}, {3, 2, 1e6, 1, 1, true}, {3, 3, 2e6, 0, 0, true}},
		"one SYN":              {{3, 1, 0, 1, 1, true}, {3, 2, 1e6, 0, 0, true}},
		"no SYN":               {{3, 1, 0, 0, 0, true}, {3, 2, 1e6, 5, 0, true}},
		"others too late": {
			{3, 1, 0, 60, 20, false}, {3, 2, crowdWait, 40, 0, true}, {3, 3, 2 * crowdWait, 0, 0, true},
		},
		"one fails": {{3, 1, 0, 60, 20, false}, {2, 2, 9e6, 40, 30, true}},
		"one more pod starts": {
			{2, 1, 0, 60, 30, false}, {3, 2, 9e6, 30, 15, false}, {3, 3, 20e6, 15, 15, true},
		},
		"the first ends meanwhile": {
			{3, 1, 0, 60, 20, false}, {2, 1, 9e6, 40, 20, false}, {2, 2, 20e6, 20, 20, true},
		},
		"some were released otherwise": {
			{3, 1, 0, 60, 20, false}, {3, 2, 9e6, 30, 15, false}, {3, 3, 20e6, 15, 15, true},
		},
		"most were released otherwise": {
			{3, 1, 0, 60, 20, false}, {3, 2, 9e6, 4, 2, false}, {3, 3, 20e6, 2, 2, true},
		},
		"a pod joins a warm service": {{4, 4, 0, 7, 0, true}},
		"two wakes": {
			{2, 1, 0, 10, 5, false}, {2, 2, 1e6, 5, 5, true},
			{2, 1, time.Hour, 10, 5, false}, {2, 2, time.Hour, 5, 5, true},
		},
	} {
		c := crowd{}
		for i, s := range steps {
			c.pods = s.pods
			now := monotime.Time(1e9).Add(s.after)
			shared, rest := c.share(uint64(i+1), s.parked, s.serving, now, crowdWait)
			if shared != s.shared || rest != s.rest {
				t.Errorf("%s, %d: %d SYNs, rest %v; want %d, %v", name, i, shared, rest, s.shared, s.rest)
			}
			if kept := c.until != 0; kept == rest {
				t.Errorf("%s, %d: kept until %v", name, i, c.until)
			}
		}
	}
}

func TestKeptSYNsAreReleasedWhenAllPodsServeOrTheTimeIsUp(t *testing.T) {
	now := monotime.Time(1e9)
	for _, c := range []struct {
		crowd   crowd
		serving int
		over    bool
	}{
		{crowd{pods: 3}, 3, false}, {crowd{pods: 3, until: now + 1}, 2, false}, {crowd{pods: 3, until: now}, 2, true},
		{crowd{pods: 2, until: now + 1}, 2, true}, {crowd{pods: 1, until: now + 1}, 1, true},
		{crowd{until: now + 1}, 1, true},
		{crowd{until: now + 1}, 0, false}, {crowd{pods: 2, until: now}, 0, true},
	} {
		if over := c.crowd.over(c.serving, now); over != c.over {
			t.Errorf("%+v with %d serving pods: over is %v", c.crowd, c.serving, over)
		}
	}
}

// greets starts a server in a pod. It sends the pod's number on each connection and closes the connection, at once or
// when the test ends.
func (w *world) greets(pod byte, closes bool) {
	w.t.Helper()
	in(w.t, fmt.Sprintf("pod%d", pod), func() error {
		l, err := net.Listen("tcp4", ":8080")
		if err != nil {
			return err
		}
		w.t.Cleanup(func() { l.Close() })
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				_, _ = c.Write([]byte{pod})
				if closes {
					c.Close()
				}
				w.t.Cleanup(func() { c.Close() })
			}
		}()
		return nil
	})
}

// fromHost runs f on a thread in the network namespace of another host.
func fromHost(name string, f func() error) error {
	h, err := netns.GetFromName(name)
	if err != nil {
		return err
	}
	defer h.Close()
	return inNetns(h, f)
}

// greeted records the connections of a crowd that pods have answered.
type greeted struct {
	mu   sync.Mutex
	by   map[byte]int // pods
	last time.Time
	wake wire.Wake // the last one that the controller has
	each chan byte // the pod that answered
	all  sync.WaitGroup
}

// crowd opens n connections from another host, and returns when their SYNs are parked.
func (w *world) crowd(host string, n uint32) *greeted {
	w.t.Helper()
	g := &greeted{by: map[byte]int{}, each: make(chan byte, n)}
	for range n {
		g.all.Go(func() {
			var c net.Conn
			pod := make([]byte, 1)
			err := fromHost(host, func() (err error) {
				c, err = net.DialTimeout("tcp4", vip.String(), 60*time.Second)
				return err
			})
			if err == nil {
				w.t.Cleanup(func() { c.Close() })
				_, err = io.ReadFull(c, pod)
			}
			if err != nil {
				w.t.Error(err)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			g.by[pod[0]]++
			g.last = time.Now()
			g.each <- pod[0]
		})
	}
	for g.wake.Parked < n {
		g.wake = *await[*wire.Wake](w)
	}
	return g
}

// counts returns how many connections each pod has answered so far.
func (g *greeted) counts() map[byte]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.by)
}

// released waits until the controller has reports that a number of pods listen, and that a number of SYNs were released
// since the first of them. It returns when the first report arrived.
func (w *world) released(pods int, syns uint32) (first time.Time) {
	w.t.Helper()
	pod, released := uint64(0), map[uint64]uint32{}
	for pods > 0 || released[pod] < syns {
		switch m := await[wire.Message](w).(type) {
		case *wire.Listening:
			if pod == 0 {
				pod, first = m.PodID, time.Now()
			}
			pods--
		case *wire.Trace:
			released[m.PodID] = m.ReleasedN
		}
	}
	return first
}

// threePods creates the networks of three pods that one wake starts.
func (w *world) threePods() *wire.Backends {
	return &wire.Backends{Service: vip, Generation: 1, Sharing: 3, Pods: []wire.Backend{w.pod(1), w.pod(2), w.pod(3)}}
}

// retransmitted returns how many SYNs a host has retransmitted.
func (w *world) retransmitted(host string) (n uint64) {
	w.t.Helper()
	if err := fromHost(host, func() error {
		all, err := netlab.ThreadCounters()
		n = all["TcpExt.TCPSynRetrans"]
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// The shares depend neither on whether the first connections are still open when the other pods listen, nor on whether
// the clients have retransmitted their SYNs by then.
func TestPodsOfAWakeShareTheCrowd(t *testing.T) {
	for name, c := range map[string]struct{ closes, late bool }{
		"open": {}, "short": {closes: true}, "late": {late: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.CrowdWait = patience })
			pods := w.threePods()
			g := w.crowd(clientNet, 60)
			w.send(pods)
			w.greets(1, c.closes)
			if c.late {
				w.released(1, 20)
				kept := w.retransmitted(clientNet) + 40
				for end := time.Now().Add(patience); w.retransmitted(clientNet) < kept; time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatal("the clients do not retransmit their SYNs")
					}
				}
			}
			w.greets(2, c.closes)
			w.greets(3, c.closes)
			g.all.Wait()
			g.all.Wait()
			got := g.counts()
			if got[1] != 20 || got[2] != 20 || got[3] != 20 {
				t.Errorf("answers by pod: %v, want 20 each", got)
			}
		})
	}
}

// The edge node learns of all serving pods at once.
func TestEdgeNodeSharesTheCrowdAmongPodsOfAnotherNode(t *testing.T) {
	l := newLAN(t)
	l.sendNodes(1, "n1", "n2")
	edge := owner(vip.Addr(), []scored{score("n1"), score("n2")}).name
	home := map[string]string{"n1": "n2", "n2": "n1"}[edge]
	pods := []wire.Backend{l.podOn(home, 1), l.podOn(home, 2), l.podOn(home, 3)}
	g := l.crowd(client, 60)
	l.sendAll(&wire.Backends{Service: vip, Generation: 1, Sharing: 3, Pods: pods})
	for i := range pods {
		l.greets(byte(i+1), false)
		pods[i].State = wire.PodServing
		await[*wire.Listening](l.world)
	}
	l.sendAll(&wire.Backends{Service: vip, Generation: 2, Pods: pods})
	g.all.Wait()
	if got := g.counts(); got[1] != 20 || got[2] != 20 || got[3] != 20 {
		t.Errorf("answers by pod: %v, want 20 each", got)
	}
}

func TestShareOfAPodThatDoesNotListenGoesToTheOthers(t *testing.T) {
	for name, fails := range map[string]bool{"never listens": false, "fails": true} {
		t.Run(name, func(t *testing.T) {
			wait := patience
			if !fails {
				wait = 5 * time.Second // long enough for two pods on a busy machine
			}
			w := newWorld(t, func(c *Config) { c.CrowdWait = wait })
			pods := w.threePods()
			g := w.crowd(clientNet, 60)
			w.send(pods)
			w.greets(1, false)
			w.greets(2, false)
			first := w.released(2, 40)
			if fails {
				// The third pod has failed, so nothing waits for it.
				pods.Generation, pods.Sharing, pods.Pods = 2, 0, pods.Pods[:2]
				pods.Pods[0].State, pods.Pods[1].State = wire.PodServing, wire.PodServing
				w.send(pods)
			}
			g.all.Wait()
			got := g.counts()
			t.Logf("answers by pod: %v; the last came %s after the first pod listened", got, g.last.Sub(first))
			if fails && g.last.Sub(first) >= wait {
				t.Error("SYNs were kept for a pod that has failed")
			}
			if got[1] != 30 || got[2] != 30 {
				t.Errorf("answers by pod: %v, want 30 each", got)
			}
		})
	}
}

// The SYNs that the lost pod did not get go to the next pod.
func TestLossOfTheOnlyPodWakesTheServiceForTheRestOfTheCrowd(t *testing.T) {
	for attempt, done := 0, false; !done && !t.Failed(); attempt++ {
		if attempt == 10 {
			t.Fatal("a client always retransmitted its SYN before the daemon asked for a wake")
		}
		t.Run("", func(t *testing.T) { done = wakesForTheRest(t) })
	}
}

// wakesForTheRest returns false if the machine is so busy that a retransmitted SYN asked for the wake.
func wakesForTheRest(t *testing.T) bool {
	t.Helper()
	// In this time the first pod answers its share and goes. A client retransmits its SYN after a second.
	w := newWorld(t, func(c *Config) { c.CrowdWait = 600 * time.Millisecond })
	pods := w.threePods()
	g := w.crowd(clientNet, 60)
	w.send(pods)
	w.greets(1, false)
	w.released(1, 20)
	for range 20 {
		<-g.each
	}
	w.send(&wire.Backends{Service: vip, Generation: 2})
	wake := await[*wire.Wake](w)
	later := wake.SYNSeen > g.wake.SYNSeen // the gate's own event, about a retransmitted SYN
	if !later && wake.SYNSeen != g.wake.SYNSeen || wake.Seq == g.wake.Seq || wake.Parked != 40 {
		t.Errorf("wake %+v after %+v", wake, g.wake)
	}
	w.send(&wire.Backends{Service: vip, Generation: 3, Pods: pods.Pods[1:2]})
	w.greets(2, false)
	w.released(1, 40)
	g.all.Wait()
	if got := g.counts(); got[1] != 20 || got[2] != 40 {
		t.Errorf("answers by pod: %v, want 20 and 40", got)
	}
	return !later
}

func TestSinglePodGetsTheWholeCrowd(t *testing.T) {
	w := newWorld(t)
	pods := w.threePods()
	g := w.crowd(clientNet, 20)
	pods.Sharing = 0
	w.send(pods)
	w.greets(2, false)
	w.released(1, 20)
	g.all.Wait()
	if got := g.counts(); got[2] != 20 {
		t.Errorf("answers by pod: %v", got)
	}
}

func TestEndingDaemonReleasesKeptSYNs(t *testing.T) {
	w := newWorld(t)
	pods := w.threePods()
	g := w.crowd(clientNet, 20)
	w.send(pods)
	w.greets(1, false)
	await[*wire.Listening](w)
	w.stop()
	g.all.Wait()
	w.start()
	if got := g.counts(); got[1] != 20 {
		t.Errorf("answers by pod: %v", got)
	}
}

// The SYN comes from a raw socket, so it is sent only once.
func TestDaemonReleasesSYNsThatACrashedOneKept(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(1)
	w.greets(1, false)
	w.stop()
	g, err := gate.Open(gate.Config{
		Dir: w.runDir, ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.46.100.0/24")},
		Interfaces: []string{"eth0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var raw int
	if err := fromHost(clientNet, func() (err error) {
		raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(raw)
	to := vip.Addr().As4()
	if err := unix.Sendto(raw, synOf([4]byte{10, 46, 200, 10}, to), 0, &unix.SockaddrInet4{Addr: to}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(60 * time.Second)
	for ; g.ServiceCounters(vip).ParkedNow == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the SYN is not parked")
		}
	}
	network, err := findNetwork(pod.Netns, pod.Addr.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.AddPod(gate.Pod{
		ID: 1, Service: vip, Addr: pod.Addr, Ifindex: network.hostIfindex, MAC: network.mac, HostMAC: network.hostMAC,
	}); err != nil {
		t.Fatal(err)
	}
	n, err := g.ServeShare(vip, 1, 0, monotime.Now().Add(time.Hour))
	if n != 0 || err != nil || g.ServiceCounters(vip).ParkedNow != 1 {
		t.Fatalf("%d released, %v", n, err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	w.start()
	b := make([]byte, 256)
	if err := unix.SetsockoptTimeval(raw, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	n, err = unix.Read(raw, b)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	if synack, ours := probeAnswer(b[:n], vip.Port(), 1234, 1); !synack || !ours {
		t.Errorf("%x", b[:n])
	}
}

// synOf returns a SYN from port 1234 to port 80 with sequence number 1.
func synOf(from, to [4]byte) []byte {
	b := probeSYN(to, 1234, 80, 1)
	// probeSYN used to as both addresses: correct the checksum for from (RFC 1624).
	sum := uint32(^binary.BigEndian.Uint16(b[16:]))
	for i := 0; i < 4; i += 2 {
		sum += uint32(^binary.BigEndian.Uint16(to[i:])) + uint32(binary.BigEndian.Uint16(from[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}
