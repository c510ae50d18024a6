// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/test/testutil/tcpserver"
)

// Verdicts of programs: TCX_ and XDP_ in <linux/bpf.h>. TCX_REDIRECT is 7.
const (
	tcxNext     = ^uint32(0)
	tcxDrop     = 2
	tcxRedirect = 7
	xdpDrop     = 1
	xdpPass     = 2
	xdpTX       = 3
)

// program selects a program and the device at which it runs.
type program int

const (
	onXDP program = iota
	onNIC
	onLocal
	onReleased
	onPod1 // gate_pod at pod 1's device
	onPod2
	onPod3
)

func (p program) String() string {
	return [...]string{"xdp", "nic", "local", "released", "pod1", "pod2", "pod3"}[p]
}

// Addresses in tests.
var (
	vip     = netip.MustParseAddrPort("10.46.100.5:80")
	client  = netip.MustParseAddrPort("10.46.200.10:40000")
	foreign = netip.MustParseAddrPort("10.99.0.1:80") // outside the service range
	podAt   = []netip.AddrPort{{}, netip.MustParseAddrPort("10.46.128.1:8080"),
		netip.MustParseAddrPort("10.46.128.2:8080"), netip.MustParseAddrPort("10.46.128.3:8080")}

	clientMAC = net.HardwareAddr{2, 0, 0, 0, 0xc, 1}
	podMAC    = []net.HardwareAddr{{}, {2, 0, 0, 0, 0xd, 1}, {2, 0, 0, 0, 0xd, 2}, {2, 0, 0, 0, 0xd, 3}}
)

// world is a gate whose programs are run on single packets, without a network.
type world struct {
	testing.TB
	g       *Gate
	ns      string // network namespace of the gate; empty for the test's own
	nic     netlink.Link
	podLink []netlink.Link
	before  map[string]uint64 // counters at the last reset
	mark    uint32            // skb->mark of packets
	segs    uint32            // skb->gso_segs of packets
}

func newWorld(t testing.TB, change func(*Config)) *world {
	w := &world{TB: t, podLink: make([]netlink.Link, 4)}
	for i := 1; i < len(w.podLink); i++ {
		w.podLink[i] = veth(t, fmt.Sprintf("pod%d", i))
	}
	w.g = openGate(t, change)
	var err error
	if w.nic, err = netlink.LinkByName("nic"); err != nil {
		t.Fatal(err)
	}
	w.must(w.g.objs.Nics.Put(uint32(w.nic.Attrs().Index), gateNic{Mac: hardwareAddr(w.nic.Attrs().HardwareAddr), Tx: 1}))
	// client is the router of all others. The metric lets tests with addresses of their own have their own routes.
	sh(t, `ip route add %[1]v dev nic metric 9999; ip neigh replace %[1]v lladdr %[2]v dev nic
		for net in 10.46.200.0/24 198.18.0.0/15; do ip route add $net via %[1]v dev nic onlink metric 9999; done`,
		client.Addr(), clientMAC)
	w.reset()
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// in returns the world for a subtest, emptied.
func (w *world) in(t testing.TB) *world {
	sub := *w
	sub.TB = t
	sub.reset()
	return &sub
}

// reset removes all services, pods, flows and parked SYNs.
func (w *world) reset() {
	w.Helper()
	for _, s := range w.g.Services() {
		for _, id := range w.g.PodIDs(s) {
			w.must(w.g.RemovePod(s, id))
		}
		w.must(w.g.RemoveService(s))
	}
	w.clearFlows()
	w.before = w.counters()
}

// clearFlows empties the flow table.
func (w *world) clearFlows() {
	w.Helper()
	var k gateFlowKey
	for w.g.objs.Flows.NextKey(nil, &k) == nil {
		w.must(w.g.objs.Flows.Delete(k))
	}
	clear(w.g.sourceShares.items)
	clear(w.g.serviceShares.items)
}

func (w *world) podIndex(i int) uint32 {
	w.Helper()
	index, ok := w.g.podTable.index(vip, uint64(i))
	if !ok {
		w.Fatalf("pod %d is unknown", i)
	}
	return index
}

// forgetFlows empties the flow table and sets the counts of all pods to zero.
func (w *world) forgetFlows() {
	w.Helper()
	w.clearFlows()
	for _, i := range w.g.podTable.used() {
		p := w.g.pods.at(i)
		p.Open, p.HalfOpen, p.NewFlows = 0, 0, 0
	}
}

func (w *world) counters() map[string]uint64 {
	w.Helper()
	c, err := w.g.Counters()
	w.must(err)
	return c
}

// counted returns the gate's nonzero counters since the last reset.
func (w *world) counted() map[string]uint64 {
	w.Helper()
	out := map[string]uint64{}
	for k, v := range w.counters() {
		if d := v - w.before[k]; d != 0 {
			out[k] = d
		}
	}
	return out
}

// service adds a cold service with limits.
func (w *world) service(a netip.AddrPort, parked, perSource uint32) {
	w.Helper()
	_, err := w.g.SetService(Service{Addr: a, MaxParked: parked, MaxParkedPerSource: perSource})
	w.must(err)
}

// addPod adds a pod of a service.
func (w *world) addPod(a netip.AddrPort, i int) {
	w.Helper()
	l := w.podLink[i].Attrs()
	w.must(inNamespace(w.ns, func() error {
		return w.g.AddPod(Pod{ID: uint64(i), Service: a, Addr: podAt[i], Ifindex: l.Index, MAC: podMAC[i],
			HostMAC: l.HardwareAddr})
	}))
}

// serve makes a pod take flows, and returns how many SYNs were released.
func (w *world) serve(a netip.AddrPort, i int) int {
	w.Helper()
	n, err := w.g.Serve(a, uint64(i))
	w.must(err)
	return n
}

// warm adds a service with serving pods.
func (w *world) warm(a netip.AddrPort, pods ...int) {
	w.Helper()
	w.service(a, 100, 100)
	for _, i := range pods {
		w.addPod(a, i)
		w.serve(a, i)
	}
}

// counts returns a pod's counts.
func (w *world) counts(a netip.AddrPort, i int) (open, halfOpen uint32, flows uint64) {
	w.Helper()
	c, err := w.g.PodCounters(a, uint64(i))
	w.must(err)
	return c.Open, c.HalfOpen, c.NewFlows
}

// wantCounts checks the counts of vip's pod 1.
func (w *world) wantCounts(open, halfOpen uint32, flows uint64) {
	w.Helper()
	o, h, n := w.counts(vip, 1)
	if o != open || h != halfOpen || n != flows {
		w.Errorf("open %d, half-open %d, new %d; want %d, %d, %d", o, h, n, open, halfOpen, flows)
	}
}

// prog returns a program and the interface at which it runs.
func (w *world) prog(p program) (*ebpf.Program, int) {
	switch p {
	case onXDP:
		return w.g.objs.GateXdp, w.nic.Attrs().Index
	case onNIC:
		return w.g.objs.GateNic, w.nic.Attrs().Index
	case onLocal:
		return w.g.objs.GateLocal, w.g.dev.inner
	case onReleased:
		return w.g.objs.GateReleased, w.g.dev.inner
	default:
		return w.g.objs.GatePod, w.podLink[p-onPod1+1].Attrs().Index
	}
}

// run runs a program on a frame and returns the verdict and the resulting frame.
func (w *world) run(p program, frame []byte) (uint32, []byte) {
	w.Helper()
	r := w.runs(p, frame, 1)
	return r.verdict, r.out
}

// wantRun is like run and checks the verdict.
func (w *world) wantRun(p program, frame []byte, verdict uint32) []byte {
	w.Helper()
	got, out := w.run(p, frame)
	if got != verdict {
		w.Fatalf("gate_%v: verdict %d, want %d, for\n%v", p, int32(got), int32(verdict), dump(frame))
	}
	return out
}

// untouched runs a program on a frame that must pass unchanged.
func (w *world) untouched(p program, frame []byte) {
	w.Helper()
	next := tcxNext
	if p == onXDP {
		next = xdpPass
	}
	if out := w.wantRun(p, frame, next); !bytes.Equal(out, frame) {
		w.Errorf("gate_%v: changed\n%x to\n%x", p, frame, out)
	}
}

// result is the result of a test run.
type result struct {
	verdict uint32
	out     []byte
	took    time.Duration // of one packet, measured by the kernel
}

// testRun is a prepared BPF_PROG_TEST_RUN. The methods of ebpf.Program either take a context or return the time.
type testRun struct {
	program    program
	frame, out []byte
	attr       testRunAttr
}

// testRunAttr is the part of union bpf_attr for BPF_PROG_TEST_RUN.
type testRunAttr struct {
	fd, retval, sizeIn, sizeOut uint32
	dataIn, dataOut             unsafe.Pointer
	repeat, duration            uint32
	ctxIn, ctxOut               uint32
	ctxDataIn, ctxDataOut       unsafe.Pointer
	flags, cpu, batch, _        uint32
}

// prepare prepares to run a program on a frame, on the resulting frame, and so on.
func (w *world) prepare(p program, frame []byte, repeat uint32) *testRun {
	w.Helper()
	prog, ifindex := w.prog(p)
	out := make([]byte, len(frame)+256)
	var ctx []byte
	if p == onXDP {
		md := struct{ data, dataEnd, dataMeta, ingressIfindex, rxQueue, egressIfindex uint32 }{dataEnd: uint32(len(frame)),
			ingressIfindex: uint32(ifindex)}
		ctx = unsafe.Slice((*byte)(unsafe.Pointer(&md)), unsafe.Sizeof(md))
	} else {
		skb := struct { // the first fields of struct __sk_buff
			_, _, mark uint32
			_          [7]uint32
			ifindex    uint32
			_          [30]uint32
			gsoSegs    uint32
		}{mark: w.mark, ifindex: uint32(ifindex), gsoSegs: w.segs}
		ctx = unsafe.Slice((*byte)(unsafe.Pointer(&skb)), unsafe.Sizeof(skb))
	}
	return &testRun{program: p, frame: frame, out: out, attr: testRunAttr{
		fd: uint32(prog.FD()), sizeIn: uint32(len(frame)), sizeOut: uint32(len(out)), dataIn: unsafe.Pointer(&frame[0]),
		dataOut: unsafe.Pointer(&out[0]), repeat: repeat, ctxIn: uint32(len(ctx)), ctxDataIn: unsafe.Pointer(&ctx[0]),
	}}
}

// run runs the program, in the thread's network namespace.
func (r *testRun) run() error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&r.attr)),
			unsafe.Sizeof(r.attr))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return fmt.Errorf("gate_%v: running a frame of %d bytes: %w", r.program, len(r.frame), errno)
	}
}

// runs runs a program on a frame, on the resulting frame, and so on.
func (w *world) runs(p program, frame []byte, repeat uint32) result {
	w.Helper()
	r := w.prepare(p, frame, repeat)
	w.must(inNamespace(w.ns, r.run))
	return result{verdict: r.attr.retval, out: r.out[:r.attr.sizeOut], took: time.Duration(r.attr.duration)}
}

// flow returns the entry of a client's flow to a service.
func (w *world) flow(from, to netip.AddrPort) (gateFlow, bool) {
	w.Helper()
	var f gateFlow
	err := w.g.objs.Flows.Lookup(flowKey(from, to), &f)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return f, false
	}
	w.must(err)
	return f, true
}

func flowKey(from, to netip.AddrPort) gateFlowKey {
	return gateFlowKey{Client: toAddr(from.Addr()), Service: toAddr(to.Addr()), ClientPort: htons(from.Port()),
		ServicePort: htons(to.Port())}
}

// entries counts the entries of a map.
func entries[K, V any](w *world, m *ebpf.Map) int {
	w.Helper()
	var k K
	var v V
	n := 0
	it := m.Iterate()
	for it.Next(&k, &v) {
		n++
	}
	w.must(it.Err())
	return n
}

// parkedNow counts the entries of the maps of parked SYNs.
func (w *world) parkedNow() (syns, flows, sources int) {
	w.Helper()
	return entries[gateTicket, gateParked](w, w.g.objs.ParkedSyns),
		entries[gateFlowKey, gateParkedFlow](w, w.g.objs.ParkedFlows),
		entries[gateSourceKey, uint32](w, w.g.objs.ParkedSources)
}

// wantParked checks these counts and the service's own.
func (w *world) wantParked(syns, sources int) {
	w.Helper()
	s, f, c := w.parkedNow()
	if now := w.g.ServiceCounters(vip).ParkedNow; s != syns || f != syns || c != sources || int(now) != syns {
		w.Errorf("parked: %d SYNs, %d flows, %d sources, %d in the service's count; want %d of %d sources", s, f, c, now,
			syns, sources)
	}
}

func linkByName(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// listenShared listens like listenIn, on a port that several sockets may share. Connections get one byte.
func listenShared(t testing.TB, ns, network, at string) net.Listener {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		_ = c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return err
	}}
	config.SetMultipathTCP(false) // it uses several sockets
	var l net.Listener
	err := inNamespace(ns, func() (err error) { l, err = config.Listen(context.Background(), network, at); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	tcpserver.Serve(l, func(c net.Conn) { // until its client has left
		_, _ = c.Write([]byte{1})
		tcpserver.Echo(c)
	})
	return l
}

// visitors are clients that connect every two milliseconds.
type visitors struct {
	stop    chan struct{}
	group   sync.WaitGroup
	mu      sync.Mutex
	refused int
	met     int       // connections
	closed  time.Time // when a socket was closed, which resets what its program has not accepted yet
	errs    []error
}

func newVisitors(from ...string) *visitors {
	c := &visitors{stop: make(chan struct{})}
	for _, ns := range from {
		c.group.Go(func() {
			for {
				select {
				case <-c.stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				c.group.Go(func() { c.connect(ns) })
			}
		})
	}
	return c
}

func (c *visitors) connect(ns string) {
	began := time.Now()
	conn, err := dial(ns, vip)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.met++
		conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED):
		c.refused++
	case wasReset(err) && (c.closed.IsZero() || began.Before(c.closed)):
	default:
		c.errs = append(c.errs, fmt.Errorf("%s after %v: %w", ns, time.Since(began), err))
	}
}

// wasReset reports whether a connection was reset, possibly after the server's FIN (EPIPE).
func wasReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// more waits until a number of other clients is connected.
func (c *visitors) more(t testing.TB, n int) {
	t.Helper()
	c.mu.Lock()
	until := c.met + n
	c.mu.Unlock()
	eventually(t, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.met < until {
			return fmt.Errorf("%d connections, want %d", c.met, until)
		}
		return nil
	})
}

// close closes a listening socket. A client that is reset by that is judged once its time is known.
func (c *visitors) close(l net.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.Close()
	c.closed = time.Now()
}

// end waits for the clients, none of whom may have been refused.
func (c *visitors) end(t testing.TB) {
	t.Helper()
	close(c.stop)
	c.group.Wait()
	if c.refused > 0 || len(c.errs) > 0 {
		t.Errorf("%d clients were refused, %d got other errors, as %v; %d were connected", c.refused, len(c.errs),
			c.errs[:min(len(c.errs), 5)], c.met)
	}
}
