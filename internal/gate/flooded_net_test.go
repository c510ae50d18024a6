// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/forge"
)

var (
	floodSYNs  = flag.Int("flood.syns", 200_000, "number of forged SYNs of a flood")
	floodRate  = flag.Int("flood.rate", 200_000, "forged SYNs a second at one node")
	floodRate2 = flag.Int("flood.rate-two", 200_000, "forged SYNs a second across two nodes, both of this machine")
	floodLeast = flag.Int("flood.least", 0, "forged SYNs a second that the gate must handle")
	floodRuns  = flag.Int("flood.runs", 1, "number of floods")
)

// lateClients are clients without a kernel of their own, so that they can take their time: each sends the ACK of a
// SYN-ACK after a round-trip time, then a byte, and awaits a byte. Like any TCP, they repeat what is not answered.
type lateClients struct {
	fd            int
	device        int
	from, to      net.HardwareAddr
	mu            sync.Mutex
	waiting       map[netip.AddrPort]chan *layers.TCP
	served, reset atomic.Int64
	starved       atomic.Int64 // reset because they were late themselves: see patience
}

// patience is how long a pod's kernel keeps a SYN for certain: after a second it repeats its SYN-ACK, and forgets the
// SYN if the flood leaves the SYN-ACK no place in a queue (reqsk_timer_handler). Clients whose ACK comes later because
// this machine is too busy to run them are not those that the test is about.
const patience = time.Second

// lateNet has the addresses of late clients, which no host has.
var lateNet = netip.MustParsePrefix("10.46.200.128/25")

// forgedNet has the addresses that forged SYNs come from, which no host has.
var forgedNet = netip.MustParsePrefix("10.47.0.0/16")

// lateHost is the address of one of them.
func lateHost(i int) netip.Addr {
	host := lateNet.Addr().As4()
	host[3] += byte(1 + i)
	return netip.AddrFrom4(host)
}

const lateHosts = 24

// newLateClients opens the clients' device in a network namespace. The nodes get them as neighbors, as they do not
// answer ARP.
func newLateClients(t *testing.T, ns string, to net.HardwareAddr, nodes ...string) *lateClients {
	t.Helper()
	l := &lateClients{to: to, waiting: map[netip.AddrPort]chan *layers.TCP{}}
	base := lateNet.Addr().As4()
	filter, err := bpf.Assemble([]bpf.Instruction{ // what is not for them is dropped before it is queued
		bpf.LoadAbsolute{Off: 12, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 4},
		bpf.LoadAbsolute{Off: 30, Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xffffff80},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(base[:]), SkipTrue: 1},
		bpf.RetConstant{Val: 2048},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		raw[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	err = inNamespace(ns, func() error {
		dev, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		l.device, l.from = dev.Index, dev.HardwareAddr
		if l.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptSockFprog(l.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
				&unix.SockFprog{Len: uint16(len(raw)), Filter: &raw[0]}),
			unix.SetsockoptTimeval(l.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(l.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: l.device}))
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		if err := inNamespace(node, func() error {
			for i := range lateHosts {
				sh(t, "ip neigh replace %v lladdr %v dev eth0", lateHost(i), l.from)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		l.read(stop)
	}()
	t.Cleanup(func() { close(stop); <-done; unix.Close(l.fd) })
	return l
}

// read hands segments to the clients that they are for.
func (l *lateClients) read(stop <-chan struct{}) {
	b := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(l.fd, b, 0)
		select {
		case <-stop:
			return
		default:
		}
		if a, ok := from.(*unix.SockaddrLinklayer); err != nil || ok && a.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		p := gopacket.NewPacket(bytes.Clone(b[:n]), layers.LayerTypeEthernet, gopacket.NoCopy)
		ip, _ := p.NetworkLayer().(*layers.IPv4)
		tcp, _ := p.TransportLayer().(*layers.TCP)
		if ip == nil || tcp == nil {
			continue
		}
		to, _ := netip.AddrFromSlice(ip.DstIP)
		l.mu.Lock()
		c := l.waiting[netip.AddrPortFrom(to, uint16(tcp.DstPort))]
		l.mu.Unlock()
		select {
		case c <- tcp:
		default: // nobody waits for it; what matters is repeated
		}
	}
}

func (l *lateClients) send(s segment) error {
	s.src, s.dst = l.from, l.to
	err := unix.Sendto(l.fd, s.frame(), 0, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: l.device})
	if errors.Is(err, unix.ENOBUFS) {
		return nil // lost, as on any network
	}
	return err
}

// errStarved is returned for a client that was late itself, and reset.
var errStarved = errors.New("this machine was too busy for the client")

// connect makes one connection.
func (l *lateClients) connect(ctx context.Context, from, to netip.AddrPort, isn uint32, rtt time.Duration) error {
	c := make(chan *layers.TCP, 16)
	l.mu.Lock()
	l.waiting[from] = c
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.waiting, from)
		l.mu.Unlock()
	}()
	begun, late := time.Now(), time.Duration(0) // late: by how much longer than it meant to this client has waited
	// exchange sends segments until one fits, again after a time that doubles.
	exchange := func(fits func(*layers.TCP) bool, wait time.Duration, s ...segment) (*layers.TCP, error) {
		for ; ; wait *= 2 {
			sent, again := time.Now(), time.NewTimer(wait)
			defer again.Stop()
			for _, s := range s {
				if err := l.send(s); err != nil {
					return nil, err
				}
			}
			for waits := true; waits; {
				select {
				case got := <-c:
					if got.RST && late > patience/4 && time.Since(begun) > patience {
						return nil, errStarved
					}
					if got.RST {
						l.reset.Add(1)
						return nil, fmt.Errorf("reset: seq %d, ack %d", got.Seq, got.Ack)
					}
					if fits(got) {
						return got, nil
					}
				case <-again.C:
					waits = false
					late += time.Since(sent) - wait
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		}
	}
	syn := segment{from: from, to: to, flags: "S", seq: isn, options: synOptions[:1]}
	synack, err := exchange(func(s *layers.TCP) bool { return s.SYN && s.ACK && s.Ack == isn+1 }, time.Second, syn)
	if err != nil {
		return fmt.Errorf("after the SYN: %w", err)
	}
	answered := time.Now()
	time.Sleep(rtt)
	late += time.Since(answered) - rtt
	ack := segment{from: from, to: to, flags: "A", seq: isn + 1, ack: synack.Seq + 1}
	data := ack
	data.flags, data.payload = "PA", []byte("?")
	if err := l.send(ack); err != nil {
		return err
	}
	timeout := rtt + max(200*time.Millisecond, 2*rtt) // RFC 6298, with Linux's least variance
	answer, err := exchange(func(s *layers.TCP) bool { return len(s.Payload) > 0 }, timeout, data)
	if err != nil {
		return fmt.Errorf("after the ACK: %w", err)
	}
	l.served.Add(1)
	return l.send(segment{from: from, to: to, flags: "RA", seq: isn + 2, ack: answer.Ack})
}

// answerBytes serves the pods of flooded services: a byte for a byte.
func answerBytes(c net.Conn) {
	var b [1]byte
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if n, _ := c.Read(b[:]); n == 1 {
		_, _ = c.Write(b[:])
		_, _ = c.Read(b[:])
	}
}

// flood lets forged SYNs to vip arrive at a node while late clients in a network namespace connect. All must be served.
// perSecond is how many are sent in a second; seen returns how many new SYNs the node's gate has handled.
func flood(t *testing.T, perSecond int, ns string, seen func() uint64, node string, others ...string) {
	t.Helper()
	var s *forge.SYNs
	var late *lateClients
	err := inNamespace(node, func() (err error) {
		mac := linkByName(t, "eth0").Attrs().HardwareAddr
		late = newLateClients(t, ns, mac, append(others, node)...)
		s, err = forge.Open(forge.Config{Device: "eth0", Arrive: true, From: late.from, To: mac,
			Sources: forgedNet, Services: []netip.AddrPort{vip}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var answers io.Closer
	if err := inNamespace(ns, func() (err error) {
		answers, err = forge.Absorb("eth0", forgedNet)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	send := func(n int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := inNamespace(node, func() (err error) { n, err = s.Send(ctx, n, perSecond); return err }); err != nil {
			t.Error(err)
		}
	}
	send(8192) // fills the ring
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	over := make(chan struct{})
	var wg sync.WaitGroup
	rtts := []time.Duration{time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond}
	for i := range lateHosts {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; ; n++ {
				from := netip.AddrPortFrom(lateHost(i), uint16(2000+n))
				err := late.connect(ctx, from, vip, uint32(n)*100_000, rtts[i%3])
				if errors.Is(err, errStarved) {
					late.starved.Add(1)
				} else if err != nil {
					t.Errorf("%v, round-trip time %v: %v", from, rtts[i%3], err)
					return
				}
				select {
				case <-over:
					return
				default:
				}
			}
		}()
	}
	before, begin := seen(), time.Now()
	send(*floodSYNs)
	arrived, took := seen()-before, time.Since(begin)
	close(over)
	wg.Wait()
	rate := float64(arrived) / took.Seconds()
	t.Logf("the gate handled %d SYNs, %.0f a second; %d clients served, %d reset, and %d that were late themselves",
		arrived, rate, late.served.Load(), late.reset.Load(), late.starved.Load())
	if arrived < uint64(*floodSYNs) || rate < float64(*floodLeast) {
		t.Errorf("want %d SYNs, at least %d a second", *floodSYNs, *floodLeast)
	}
}

// newSYNs is how many SYNs opened a flow, or got none because of a flood, once the rings are full.
func newSYNs(c map[string]uint64, prefix string) uint64 {
	return c[prefix+"flooded_syns"] + c[prefix+"evicted"]
}

// Clients far away are served during a flood by which their half-open connections could not outlast the ring.
func TestFloodResetsNoGenuineClient(t *testing.T) {
	for range *floodRuns {
		t.Run("one node", func(t *testing.T) {
			n := newNetwork(t, XDPAuto, 1500)
			n.service()
			for i := 1; i <= 2; i++ {
				serveIn(t, podNS(i), podAt[i], answerBytes)
			}
			n.must(n.g.RemovePod(vip2, 2))
			for i := 1; i <= 2; i++ {
				n.addPod(vip, i)
				_, err := n.g.Serve(vip, uint64(i))
				n.must(err)
			}
			flood(t, *floodRate, "client", func() uint64 { return newSYNs(counted(t, n.g), "") }, "")
			if c := counted(t, n.g); c["flooded_syns"] == 0 || c["flows_full"]+c["no_pod"] != 0 {
				t.Errorf("counted %v", c)
			}
		})
		t.Run("two nodes", func(t *testing.T) {
			c := newCluster(t, 1500)
			on := []*node{nil, c.home, c.edge}
			for i := 1; i <= 2; i++ {
				c.podNet(on[i], i, 1500)
				serveIn(t, podNS(i), podAt[i], answerBytes)
				c.addPod(vip, on[i], i)
				c.serve(vip, i)
			}
			flood(t, *floodRate2, "client", func() uint64 { return newSYNs(c.counted(), "edge ") }, c.edge.name, c.home.name)
			if got := c.counted(); got["edge flooded_syns"] == 0 || got["edge flows_full"]+got["edge no_pod"] != 0 {
				t.Errorf("counted %v", got)
			}
		})
	}
}
