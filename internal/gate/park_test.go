// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/monotime"
)

// fromOther returns a segment of another client.
func (s segment) fromOther(host byte, port uint16) segment {
	a := client.Addr().As4()
	a[3] = host
	s.from = netip.AddrPortFrom(netip.AddrFrom4(a), port)
	return s
}

// events collects the gate's events.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (w *world) events() *events {
	e := &events{}
	stop, err := w.g.Events(func(ev Event) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.all = append(e.all, ev)
	})
	w.must(err)
	w.Cleanup(func() { w.must(stop()) })
	return e
}

// await waits for n events of a kind and returns all of that kind.
func (e *events) await(t testing.TB, kind EventKind, n int) []Event {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		e.mu.Lock()
		got := slices.DeleteFunc(slices.Clone(e.all), func(ev Event) bool { return ev.Kind != kind })
		e.mu.Unlock()
		if len(got) >= n {
			return got
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %d events of kind %d, want %d", len(got), kind, n)
		}
		time.Sleep(time.Millisecond)
	}
}

// It does not depend on the number of SYNs. The next wake has an event of its own.
func TestOneWakeEventPerWake(t *testing.T) {
	w := newWorld(t, nil)
	e := w.events()
	cold(w)
	seen := map[program]bool{}
	for i := range 30 {
		on := []program{onXDP, onNIC, onLocal, onPod2}[i%4]
		want := uint32(tcxDrop)
		if on == onXDP {
			want = xdpDrop
		}
		seen[on] = true
		w.wantRun(on, w.syn(1000).fromOther(byte(i%3), uint16(1000+i/2)).frame(), want)
	}
	if got := e.await(t, EventWake, 1); len(got) != 1 || got[0].Service != vip || got[0].At != w.g.SYNSeen(vip) ||
		got[0].At == 0 {
		t.Errorf("%+v", got)
	}
	if c := w.g.ServiceCounters(vip); c.Wakes != 1 || c.Parked+c.Duplicates != 30 {
		t.Errorf("%+v", c)
	}
	if w.g.ServiceState(vip) != Waking || len(w.g.Pending()) != 1 {
		t.Errorf("state %d, pending %v", w.g.ServiceState(vip), w.g.Pending())
	}
	// The next wake has an event of its own.
	w.g.Refuse(vip)
	if w.g.ServiceState(vip) != Cold {
		t.Errorf("state %d, want cold", w.g.ServiceState(vip))
	}
	w.wantRun(onXDP, w.syn(7).frame(), xdpDrop)
	if got := e.await(t, EventWake, 2); len(got) != 2 {
		t.Errorf("%+v", got)
	}
}

// The ring buffer's reader is woken even if it has not caught up.
func TestWakeEventWakesASlowReader(t *testing.T) {
	w := newWorld(t, nil)
	second := netip.MustParseAddrPort("10.46.100.6:80")
	cold(w)
	w.service(second, 10, 10)
	r, err := ringbuf.NewReader(w.g.objs.Events)
	w.must(err)
	defer r.Close()
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	w.must(err)
	defer unix.Close(poll)
	// Edge-triggered: it reports wake-ups, not the presence of data.
	w.must(unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, w.g.objs.Events.FD(),
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(w.g.objs.Events.FD())}))
	woken := func() bool {
		got := make([]unix.EpollEvent, 1)
		for {
			n, err := unix.EpollWait(poll, got, 10000)
			if err == unix.EINTR {
				continue
			}
			w.must(err)
			return n == 1
		}
	}
	s := w.syn(1)
	w.wantRun(onXDP, s.frame(), xdpDrop)
	if !woken() {
		t.Fatal("no wake-up for the first event")
	}
	// The event is not read; the next one wakes again.
	s.to = second
	w.wantRun(onXDP, s.frame(), xdpDrop)
	if !woken() {
		t.Fatal("no wake-up for the second event")
	}
}

// If the ring buffer is full, the service becomes cold again, and the next SYN, even a retransmitted one, requests the
// wake again.
func TestLostWakeEventIsSentAgain(t *testing.T) {
	w := newWorld(t, nil)
	cold(w)
	filler := netip.MustParseAddrPort("10.46.100.6:80")
	w.service(filler, 10, 10)
	s := w.syn(1)
	s.to = filler
	f := s.frame()
	// Without a reader, each wake adds an event.
	for i := 0; w.counted()["events_lost"] == 0; i++ {
		if i > 100000 {
			t.Fatal("the ring buffer is never full")
		}
		w.run(onXDP, f)
		w.g.Refuse(filler)
	}
	for range 3 {
		w.wantRun(onXDP, w.syn(1000).frame(), xdpDrop)
		if p := w.g.ServiceState(vip); p != Cold {
			t.Fatalf("state %d, want cold: the event was lost", p)
		}
	}
	w.wantParked(1, 1)
	if c := w.g.ServiceCounters(vip); c.Wakes != 0 || c.Parked != 1 || c.Duplicates != 2 {
		t.Errorf("%+v", c)
	}
	if p := w.g.Pending(); !slices.Contains(p, vip) {
		t.Errorf("pending %v", p)
	}
	e := w.events()
	e.await(t, EventWake, 1) // the reader has started
	deadline := time.Now().Add(60 * time.Second)
	for w.g.ServiceState(vip) == Cold {
		if time.Now().After(deadline) {
			t.Fatal("no event after the ring buffer was read")
		}
		w.run(onXDP, w.syn(1000).frame())
		time.Sleep(time.Millisecond)
	}
	for !slices.ContainsFunc(e.await(t, EventWake, 1), func(ev Event) bool { return ev.Service == vip }) {
		if time.Now().After(deadline) {
			t.Fatal("no event for the wake")
		}
		time.Sleep(time.Millisecond)
	}
}

// Refused SYNs make room.
func TestParkLimitsAreExact(t *testing.T) {
	w := newWorld(t, nil)
	w.service(vip, 10, 4)
	for i := range 8 {
		w.wantRun(onXDP, w.syn(1).fromOther(1, uint16(1000+i)).frame(), xdpDrop)
	}
	w.wantParked(4, 1)
	for i := range 8 {
		w.wantRun(onNIC, w.syn(1).fromOther(2, uint16(1000+i)).frame(), tcxDrop)
	}
	w.wantParked(8, 2)
	for i := range 20 {
		w.wantRun(onXDP, w.syn(1).fromOther(byte(3+i), 1000).frame(), xdpDrop)
	}
	w.wantParked(10, 4)
	if c := w.g.ServiceCounters(vip); c.Parked != 10 || c.Overflows != 4+4+18 || c.Wakes != 1 || c.Duplicates != 0 {
		t.Errorf("%+v", c)
	}
	// Retransmissions of parked SYNs are duplicates only.
	w.wantRun(onXDP, w.syn(1).fromOther(1, 1000).frame(), xdpDrop)
	w.wantParked(10, 4)
	if n := w.g.Refuse(vip); n != 10 {
		t.Errorf("%d clients refused, want 10", n)
	}
	w.wantParked(0, 0)
	for i := range 8 {
		w.wantRun(onXDP, w.syn(1).fromOther(1, uint16(1000+i)).frame(), xdpDrop)
	}
	w.wantParked(4, 1)
}

func TestFullParkTableDoesNotBlockOtherServices(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Parked = 8 })
	cold(w)
	for i := range 20 {
		w.wantRun(onXDP, w.syn(1).fromOther(byte(i), 1000).frame(), xdpDrop)
	}
	w.wantParked(6, 6)
	// The last quarter of the table is for the first SYN of each service.
	if c := w.g.ServiceCounters(vip); c.Parked != 6 || c.ParkedNow != 6 || c.Overflows != 14 ||
		w.counted()["parked_full"] != 14 {
		t.Errorf("%+v, counted %v", c, w.counted())
	}
	other := netip.MustParseAddrPort("10.46.100.6:80")
	w.service(other, 10, 10)
	s := w.syn(1)
	s.to = other
	w.wantRun(onXDP, s.frame(), xdpDrop)
	if w.g.ServiceState(other) != Waking {
		t.Error("another service cannot be woken")
	}
	if c := w.g.ServiceCounters(other); c.ParkedNow != 1 || c.Parked != 1 {
		t.Errorf("%+v", c)
	}
	if n := w.g.Refuse(vip) + w.g.Refuse(other); n != 7 {
		t.Errorf("%d clients refused, want 7", n)
	}
	w.wantParked(0, 0)
}

func TestSYNIsParkedWithItsData(t *testing.T) {
	all := newWorld(t, nil)
	for _, on := range []program{onXDP, onNIC} {
		for _, n := range []int{0, 1, 1000, 1442, 1462} {
			w := all.in(t)
			cold(w)
			s := w.syn(1000)
			s.padding = 3
			s.payload = bytes.Repeat([]byte{0xab, 1}, n)[:n]
			f := s.frame()
			w.run(on, f)
			var k gateTicket
			var p gateParked
			it := w.g.objs.ParkedSyns.Iterate()
			if !it.Next(&k, &p) || int(p.Len) != 74+n || !bytes.Equal(p.Frame[:p.Len], f[:74+n]) {
				t.Errorf("%v: SYN with %d bytes of data: parked %d bytes", on, n, p.Len)
			}
		}
	}
}

// The client started anew from the same port.
func TestNewSYNReplacesAParkedOne(t *testing.T) {
	w := newWorld(t, nil)
	cold(w)
	w.wantRun(onXDP, w.syn(1000).frame(), xdpDrop)
	w.wantRun(onXDP, w.syn(1).fromOther(9, 9).frame(), xdpDrop)
	w.wantRun(onXDP, w.syn(2000).frame(), xdpDrop)
	w.wantParked(2, 2)
	var pf gateParkedFlow
	w.must(w.g.objs.ParkedFlows.Lookup(flowKey(client, vip), &pf))
	var p gateParked
	w.must(w.g.objs.ParkedSyns.Lookup(pf.Ticket, &p))
	if pf.Isn != 2000 || p.Isn != 2000 || !bytes.Equal(p.Frame[:p.Len], w.syn(2000).frame()[:p.Len]) {
		t.Errorf("parked: %d, %d", pf.Isn, p.Isn)
	}
}

// capture returns a function that waits for frames received by a device.
func capture(t testing.TB, device string) func(n int) [][]byte {
	t.Helper()
	// With protocol 0 it receives nothing before it is bound, when it would get frames of all devices.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	l := linkByName(t, device)
	if err := unix.Bind(fd,
		&unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: l.Attrs().Index}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		t.Fatal(err)
	}
	return func(n int) [][]byte {
		t.Helper()
		var out [][]byte
		for len(out) < n {
			b := make([]byte, 2048)
			m, from, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				t.Fatalf("%d frames received by %s, want %d: %v", len(out), device, n, os.NewSyscallError("recvfrom", err))
			}
			if a, ok := from.(*unix.SockaddrLinklayer); ok && a.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			out = append(out, b[:m])
		}
		return out
	}
}

// The RST is one that the client accepts, and takes the way that the SYN came.
func TestRefuseResetsParkedClients(t *testing.T) {
	w := newWorld(t, nil)
	cold(w)
	atClient, atPod := capture(t, "nicp"), capture(t, "pod2p")
	var want []segment
	for i := range 3 {
		s := w.syn(uint32(1000+i)).fromOther(byte(i), uint16(4000+i))
		s.payload = make([]byte, 7*i)
		if i == 2 {
			s.ipOptions = router
		}
		want = append(want, s)
		w.wantRun(onXDP, s.frame(), xdpDrop)
	}
	fromPod := w.syn(5).fromOther(77, 1)
	fromPod.src, fromPod.dst = podMAC[2], w.podLink[2].Attrs().HardwareAddr
	w.wantRun(onPod2, fromPod.frame(), tcxDrop)
	if n := w.g.Refuse(vip); n != 4 {
		t.Errorf("%d clients refused, want 4", n)
	}
	for i, out := range atClient(3) {
		resetTo(t, want[i], out)
	}
	resetTo(t, fromPod, atPod(1)[0])
	w.wantParked(0, 0)
	if c := w.g.ServiceCounters(vip); c.Refused != 4 || c.ParkedNow != 0 {
		t.Errorf("%+v", c)
	}
	if w.g.Refuse(vip) != 0 {
		t.Error("refused twice")
	}
}

func TestReleaseKeepsOrderAndBytes(t *testing.T) {
	w := newWorld(t, nil)
	out := podNamespace(t, w, 1)
	cold(w)
	var want [][]byte
	for i := range 40 {
		s := w.syn(uint32(1000+i)).fromOther(byte(i), uint16(4000+i))
		s.payload = make([]byte, i*20)
		s.padding = i % 5
		on, verdict := onXDP, uint32(xdpDrop)
		if i%2 == 1 {
			on, verdict = onNIC, tcxDrop
		}
		f := s.frame()
		want = append(want, f[:74+i*20])
		s.partial = i%3 == 0
		w.wantRun(on, s.frame(), verdict)
		w.wantRun(on, s.frame(), verdict) // retransmitted
	}
	w.addPod(vip, 1)
	if n := w.serve(vip, 1); n != 40 {
		t.Errorf("%d released, want 40", n)
	}
	for i, got := range out(40) {
		w.toPod(1, want[i], got)
	}
	w.wantParked(0, 0)
	w.wantCounts(0, 40, 0)
	if c := w.g.ServiceCounters(vip); c.Released != 40 || c.Parked != 40 || c.Duplicates != 40 || c.Overflows != 0 ||
		c.Refused != 0 {
		t.Errorf("%+v", c)
	}
	if w.g.ServiceState(vip) != Warm {
		t.Errorf("state %d", w.g.ServiceState(vip))
	}
}

// The rest stays parked for other pods, whatever arrives meanwhile, until Release.
func TestServeShareReleasesTheOldest(t *testing.T) {
	w := newWorld(t, nil)
	out := [4]func(n int) [][]byte{}
	for i := 1; i <= 3; i++ {
		out[i] = podNamespace(t, w, i)
	}
	cold(w)
	var syns [][]byte
	for i := range 12 {
		syns = append(syns, w.syn(1000).fromOther(byte(i), 4000).frame())
		w.wantRun(onXDP, syns[i], xdpDrop)
	}
	share := func(pod int, n uint32, want ...int) {
		t.Helper()
		w.addPod(vip, pod)
		if got, err := w.g.ServeShare(vip, uint64(pod), n, 0); err != nil || got != len(want) {
			t.Fatalf("pod %d: %d released, %v; want %d", pod, got, err, len(want))
		}
		for i, frame := range out[pod](len(want)) {
			w.toPod(pod, syns[want[i]][:74], frame)
		}
	}
	share(1, 4, 0, 1, 2, 3)
	w.wantParked(8, 8)
	// A SYN that arrives now is sent on at once, as is one that is retransmitted later than the parked ones should wait.
	w.toPod(1, w.syn(7).fromOther(50, 50).frame(), w.wantRun(onNIC, w.syn(7).fromOther(50, 50).frame(), tcxRedirect))
	w.toPod(1, syns[5], w.wantRun(onNIC, syns[5], tcxRedirect))
	w.wantParked(7, 7)
	// The pod gets its share even if the other one has no flows left.
	w.forgetFlows()
	share(2, 4, 4, 6, 7, 8)
	w.wantParked(3, 3)
	share(3, 0)
	w.wantParked(3, 3)
	if n, err := w.g.Release(vip); n != 3 || err != nil {
		t.Errorf("%d released, %v; want 3", n, err)
	}
	w.wantParked(0, 0)
	// The others have the fewest flows: pod 2 has four.
	out[1](1)
	out[3](1)
	if c := w.g.ServiceCounters(vip); c.Released != 12 || c.Parked != 12 || c.Overflows != 0 {
		t.Errorf("%+v", c)
	}
}

// While SYNs are kept for other pods, those that listen get new SYNs, but none of the kept ones.
func TestRetransmissionsOfKeptSYNsAreDropped(t *testing.T) {
	w := newWorld(t, nil)
	cold(w)
	for i := range byte(4) {
		w.wantRun(onXDP, w.syn(1000).fromOther(i, 4000).frame(), xdpDrop)
	}
	w.addPod(vip, 1)
	keep := monotime.Now().Add(time.Hour)
	if n, err := w.g.ServeShare(vip, 1, 2, keep); n != 2 || err != nil {
		t.Fatalf("%d released, %v", n, err)
	}
	again := func(i byte, seq uint32) []byte { return w.syn(seq).fromOther(i, 4000).frame() }
	w.wantRun(onNIC, again(2, 1000), tcxDrop)
	w.wantRun(onNIC, again(3, 1000), tcxDrop)
	w.wantParked(2, 2)
	if c := w.g.ServiceCounters(vip); c.Duplicates != 2 || c.Released != 2 {
		t.Errorf("%+v", c)
	}
	// The clients that were released go on with their pod, new ones get it, and so does one that starts anew.
	w.toPod(1, again(0, 1000), w.wantRun(onNIC, again(0, 1000), tcxRedirect))
	w.toPod(1, again(9, 1000), w.wantRun(onNIC, again(9, 1000), tcxRedirect))
	w.toPod(1, again(3, 2000), w.wantRun(onNIC, again(3, 2000), tcxRedirect))
	w.wantParked(1, 1)
	// The next pod may keep them no longer.
	w.addPod(vip, 2)
	if n, err := w.g.ServeShare(vip, 2, 0, monotime.Now()); n != 0 || err != nil {
		t.Fatalf("%d released, %v", n, err)
	}
	w.wantRun(onNIC, again(2, 1000), tcxRedirect)
	w.wantParked(0, 0)
}

// A client's next connection goes to the pod of its released one.
func TestServeShareRespectsAffinity(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.g.SetService(Service{Addr: vip, MaxParked: 100, MaxParkedPerSource: 100, Affinity: true})
	w.must(err)
	for i := range byte(40) {
		w.wantRun(onXDP, w.syn(1000).fromOther(i, 4000).frame(), xdpDrop)
	}
	for i := 1; i <= 2; i++ {
		w.addPod(vip, i)
		if n, err := w.g.ServeShare(vip, uint64(i), 20, 0); n != 20 || err != nil {
			t.Fatalf("%d released, %v", n, err)
		}
	}
	for i := range byte(20) {
		first := w.syn(1000).fromOther(20+i, 4000)
		f, _ := w.flow(first.from, vip)
		next := podOf(t, w.wantRun(onNIC, w.syn(1).fromOther(20+i, 4001).frame(), tcxRedirect))
		if f.Pod != w.podIndex(next) {
			t.Errorf("client %d: first the pod with index %d, then pod %d", 20+i, f.Pod, next)
		}
	}
}

// A SYN that is retransmitted when its service is warm, but before the release, is sent on at once; the parked one is
// dropped.
func TestRetransmittedSYNUnparksItsTwin(t *testing.T) {
	w := newWorld(t, nil)
	parkedAndWarm(w)
	w.toPod(1, synFrame(w), w.wantRun(onNIC, synFrame(w), tcxRedirect))
	w.wantParked(0, 0)
	w.addPod(vip, 2)
	if n := w.serve(vip, 2); n != 0 {
		t.Errorf("%d released", n)
	}
	w.wantRun(onReleased, synFrame(w), tcxDrop)
	w.wantCounts(0, 1, 0)
	if _, h, _ := w.counts(vip, 2); h != 0 {
		t.Error("the parked SYN went to another pod")
	}
	if c := w.g.ServiceCounters(vip); c.Released != 1 || c.Parked != 1 {
		t.Errorf("%+v", c)
	}
}

// New SYNs are parked, and the flows of the draining pod continue.
func TestDrainingTheLastPodMakesTheServiceCold(t *testing.T) {
	w := newWorld(t, nil)
	connected(w)
	e := w.events()
	w.must(w.g.Drain(vip, 1))
	if w.g.ServiceState(vip) != Cold {
		t.Errorf("state %d", w.g.ServiceState(vip))
	}
	s := w.syn(1).fromOther(9, 9)
	w.wantRun(onXDP, s.frame(), xdpDrop)
	e.await(t, EventWake, 1)
	w.toPod(1, dataFrame(w), w.wantRun(onNIC, dataFrame(w), tcxRedirect))
	w.untouched(onXDP, dataFrame(w))
	// A SYN on an open flow is for its pod to answer, whatever the service's state.
	w.untouched(onXDP, w.syn(77).frame())
	w.wantCounts(1, 0, 1)
	w.addPod(vip, 2)
	w.wantRun(onNIC, w.syn(2).fromOther(9, 10).frame(), tcxDrop) // it does not serve yet
	if n := w.serve(vip, 2); n != 2 {
		t.Errorf("%d released", n)
	}
	if st, _ := w.g.PodState(vip, 1); st != PodDraining {
		t.Errorf("pod 1 has state %d", st)
	}
}

// Nothing is left to the next service with the same index.
func TestRemovedServiceRefusesParkedSYNs(t *testing.T) {
	w := newWorld(t, nil)
	cold(w)
	out := capture(t, "nicp")
	w.wantRun(onXDP, synFrame(w), xdpDrop)
	w.must(w.g.RemoveService(vip))
	resetTo(t, w.syn(1000), out(1)[0])
	w.wantParked(0, 0)
	w.untouched(onNIC, synFrame(w))
	w.untouched(onXDP, arpFrame(1, client.Addr(), vip.Addr()))
	next := netip.MustParseAddrPort("10.46.100.9:80")
	w.service(next, 5, 5)
	if c := w.g.ServiceCounters(next); c != (ServiceCounters{}) || w.g.ServiceState(next) != Cold {
		t.Errorf("the next service starts with %+v, state %d", c, w.g.ServiceState(next))
	}
}

// Leftovers are SYNs of a removed service, entries that lead to no SYN, and counts without SYNs.
func TestSweepRemovesLeftoversOfParkedSYNs(t *testing.T) {
	w := newWorld(t, nil)
	cold(w)
	w.wantRun(onXDP, synFrame(w), xdpDrop)
	if s, err := w.g.Sweep(DefaultAges()); err != nil || s.Parked != 0 {
		t.Errorf("a valid parked SYN was swept: %+v, %v", s, err)
	}
	w.wantParked(1, 1)
	// An old SYN of a removed service, an entry without SYN, a count without SYNs.
	var t1 gateTicket
	var p gateParked
	w.g.objs.ParkedSyns.Iterate().Next(&t1, &p)
	p.Seen = 1
	t1.Service = 5
	p.Flow.ClientPort++
	w.must(w.g.objs.ParkedSyns.Put(t1, p))
	k := p.Flow
	k.ClientPort++
	w.must(w.g.objs.ParkedFlows.Put(k, gateParkedFlow{Ticket: gateTicket{Service: 7, Number: 7}}))
	w.must(w.g.objs.ParkedSources.Put(gateSourceKey{Service: 9, Client: k.Client}, uint32(3)))
	s, err := w.g.Sweep(DefaultAges())
	if err != nil || s.Parked != 3 {
		t.Errorf("%+v, %v; want 3 removed", s, err)
	}
	w.wantParked(1, 1)
}

func TestConcurrentSYNIsParkedOnce(t *testing.T) {
	w := newWorld(t, nil)
	w.service(vip, 4000, 4000)
	const n = 3000
	together(n, func(side, i int) func() {
		f, on := w.syn(uint32(1000+i)).fromOther(byte(i%3), uint16(1000+i)).frame(), []program{onXDP, onNIC}[side]
		return func() { w.run(on, f) }
	})
	w.wantParked(n, 3)
	if c := w.g.ServiceCounters(vip); c.Parked != n || c.Duplicates != n || c.Wakes != 1 || c.Overflows != 0 {
		t.Errorf("%+v", c)
	}
}

// Either the release or the program sends it on.
func TestSYNParkedDuringServeIsReleased(t *testing.T) {
	w := newWorld(t, nil)
	podNamespace(t, w, 1)
	w.service(vip, 1000, 1000)
	w.addPod(vip, 1)
	stuck := 0
	together(4000, func(side, i int) func() {
		if side == 0 {
			f := w.syn(uint32(1000+i)).fromOther(byte(i>>8), uint16(1000+i&0xff)).frame()
			return func() {
				if v, _ := w.run(onXDP, f); v == xdpPass {
					w.run(onNIC, f)
				}
			}
		}
		if i > 0 {
			if w.g.ServiceCounters(vip).ParkedNow > 0 {
				stuck++
			}
			w.must(w.g.Drain(vip, 1))
			w.g.Refuse(vip)
		}
		return func() {
			w.serve(vip, 1)
		}
	})
	if stuck > 0 {
		t.Errorf("%d times a SYN was left parked at a warm service", stuck)
	}
}

// Many SYNs arrive on all CPUs while the service is woken, refused and served. Each is parked at most once and
// released or refused at most once, and nothing remains.
func TestParkedSYNsAreHandledExactlyOnce(t *testing.T) {
	w := newWorld(t, nil)
	podNamespace(t, w, 1)
	w.service(vip, 1000, 1000)
	w.addPod(vip, 1)
	const senders, each = 4, 300
	var wg sync.WaitGroup
	for s := range senders {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				// Two senders have the same SYNs: retransmissions on another CPU.
				f := w.syn(uint32(1000+i)).fromOther(byte(s/2), uint16(1000+i)).frame()
				on := onXDP
				if s%2 == 1 {
					on = onNIC
				}
				w.run(on, f)
			}
		}()
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		w.serve(vip, 1)
		w.must(w.g.Drain(vip, 1))
		w.g.Refuse(vip)
	}
	w.serve(vip, 1)
	syns, flows, sources := w.parkedNow()
	c := w.g.ServiceCounters(vip)
	if syns != 0 || flows != 0 || c.ParkedNow != 0 || sources > 1 {
		t.Errorf("remaining: %d SYNs, %d flows, %d sources; %+v", syns, flows, sources, c)
	}
	if c.Parked != c.Released+c.Refused {
		t.Errorf("parked %d, released %d and refused %d", c.Parked, c.Released, c.Refused)
	}
	open, half, _ := w.counts(vip, 1)
	if n := entries[gateFlowKey, gateFlow](w, w.g.objs.Flows); int(half) != n || open != 0 {
		t.Errorf("%d half-open flows counted, want %d; %d open", half, n, open)
	}
}

// The SYNs of some services leave a place for one of each other, as many as there are places in the last quarter.
func TestFloodedServicesLeavePlacesForOthers(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Parked = 256 })
	parked := func() (n []uint32) {
		for i := range 5 {
			a := serviceAt(i)
			w.service(a, 1024, 1024)
			for j := range 100 {
				s := w.syn(1000)
				s.to, s.from = a, netip.AddrPortFrom(s.from.Addr(), uint16(1024+j))
				w.run(onXDP, s.frame())
			}
			n = append(n, w.g.ServiceCounters(a).ParkedNow)
		}
		return n
	}
	want := []uint32{100, 92, 1, 1, 1} // three quarters for all, then one each
	for range 2 {
		if got := parked(); !slices.Equal(got, want) {
			t.Errorf("%d SYNs parked, want %d", got, want)
		}
		for i := range 5 {
			w.g.Refuse(serviceAt(i))
		}
		if n := *w.g.places.at(0); n != 0 {
			t.Errorf("%d places taken by no SYN", n)
		}
	}
	// As after an upgrade from a version that did not count.
	parked()
	*w.g.places.at(0) = 7
	if _, err := w.g.Sweep(hours()); err != nil || *w.g.places.at(0) != 195 {
		t.Errorf("%d places taken after a sweep (%v), want 195", *w.g.places.at(0), err)
	}
}

// Strangers who wake many services, with as many SYNs each as are kept for them, leave a place for the next service.
func TestManyWokenServicesLeavePlacesForOthers(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Sizes.Parked = 256 })
	for i := range 20 {
		a := serviceAt(i)
		w.service(a, 1024, 1024)
		for j := range 16 {
			s := w.syn(1000)
			s.to, s.from = a, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i), byte(j + 1)}), 4000)
			w.run(onXDP, s.frame())
		}
	}
	w.service(vip, 1024, 1024)
	w.wantRun(onXDP, w.syn(1000).frame(), xdpDrop)
	if c := w.g.ServiceCounters(vip); c.ParkedNow != 1 {
		t.Errorf("%+v, want 1 parked; %d places taken", c, *w.g.places.at(0))
	}
}
