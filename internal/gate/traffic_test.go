// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"wangell.loutres.me/test/testutil/need"
	"wangell.loutres.me/test/testutil/netlab"
)

// network is a real network: the node is the test's own namespace, with a client behind eth0 and pods behind veths.
type network struct {
	*testing.T
	g   *Gate
	ev  *events
	cfg Config
}

// vip2 is another service.
var vip2 = netip.MustParseAddrPort("10.46.100.6:80")

const nodeAddr = "10.46.200.1"

// newNetwork creates a network whose devices have a given MTU, and opens the gate.
func newNetwork(t *testing.T, mode XDPMode, mtu int) *network {
	return newNetworkWith(t, mtu, func(c *Config) { c.XDPMode = mode })
}

// newNetworkWith is newNetwork for a gate with another configuration.
func newNetworkWith(t *testing.T, mtu int, change func(*Config)) *network {
	// A strict filter, as in some distributions.
	sh(t, "ip link set lo up; sysctl -qw net.ipv4.conf.all.rp_filter=1 '%s'", smallBuffers)
	newNamespace(t, "client")
	sh(t, `ip link add eth0 mtu %[1]d type veth peer name eth0 netns client; ip addr add %[2]s/24 dev eth0
		ip link set eth0 up
		ip -n client link set eth0 mtu %[1]d; ip -n client addr add %[3]v/24 dev eth0; ip -n client link set eth0 up
		ip -n client route add %[4]v dev eth0`, mtu, nodeAddr, client.Addr(), serviceRange)
	t.Cleanup(func() { sh(t, "ip link del eth0; ip addr flush dev lo") })
	n := &network{T: t}
	n.cfg = Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, Interfaces: []string{"eth0"},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	change(&n.cfg)
	for i := 1; i <= 2; i++ {
		n.podNet(i, mtu)
	}
	n.openBy(openAny)
	t.Cleanup(func() { n.must(closeAny(n.g, n.cfg.Remove)) })
	return n
}

func (n *network) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *network) open() {
	n.Helper()
	n.openBy(Open)
}

func (n *network) openBy(open func(Config) (*Gate, error)) {
	n.Helper()
	var err error
	n.g, err = open(n.cfg)
	n.must(err)
	n.ev = (&world{TB: n.T, g: n.g}).events()
}

func podNS(i int) string { return fmt.Sprintf("pod%d", i) }

// podNet creates the network of a pod, like a runtime.
func (n *network) podNet(i, mtu int) {
	n.Helper()
	newNamespace(n, podNS(i))
	sh(n.T, `ip link add %[1]s address 02:00:00:00:0e:0%[4]d mtu %[3]d type veth peer name eth0 netns %[1]s
		ip link set %[1]s up
		ip -n %[1]s link set eth0 mtu %[3]d up; ip -n %[1]s addr add %[2]v/32 dev eth0
		ip -n %[1]s route add 169.254.46.1 dev eth0
		ip -n %[1]s neigh add 169.254.46.1 lladdr 02:00:00:00:0e:0%[4]d dev eth0
		ip -n %[1]s route add default via 169.254.46.1`,
		podNS(i), podAt[i].Addr(), mtu, i)
	n.Cleanup(func() { sh(n.T, "ip link del %s", podNS(i)) })
}

// addPod adds a pod.
func (n *network) addPod(service netip.AddrPort, i int) {
	n.Helper()
	host := linkByName(n, podNS(i)).Attrs()
	var mac net.HardwareAddr
	n.must(inNamespace(podNS(i), func() error { mac = linkByName(n, "eth0").Attrs().HardwareAddr; return nil }))
	n.must(n.g.AddPod(Pod{ID: uint64(i), Service: service, Addr: podAt[i], Ifindex: host.Index, MAC: mac,
		HostMAC: host.HardwareAddr}))
}

// service adds the service vip, and another whose pod 2 can be a client.
func (n *network) service() {
	n.Helper()
	for _, a := range []netip.AddrPort{vip, vip2} {
		_, err := n.g.SetService(Service{Addr: a, MaxParked: 100, MaxParkedPerSource: 100})
		n.must(err)
	}
	n.addPod(vip2, 2)
}

// echo starts a server in a network namespace. Once a client has closed its side, it answers with the SHA-256 sum of
// the request and the request. It reports the clients' addresses.
func echo(t testing.TB, ns string, at netip.AddrPort) <-chan netip.AddrPort {
	t.Helper()
	from := make(chan netip.AddrPort, 100)
	serveIn(t, ns, at, func(c net.Conn) {
		from <- c.RemoteAddr().(*net.TCPAddr).AddrPort()
		all, err := io.ReadAll(c)
		if err != nil {
			return
		}
		sum := sha256.Sum256(all)
		_, _ = c.Write(append(sum[:], all...))
	})
	return from
}

// dial connects from a network namespace. Meanwhile a gate may be opened more than once, each time with the verifier.
func dial(from string, to netip.AddrPort) (*net.TCPConn, error) {
	return dialWithin(from, to, time.Minute)
}

func dialWithin(from string, to netip.AddrPort, patience time.Duration) (c *net.TCPConn, err error) {
	err = inNamespace(from, func() error {
		conn, err := net.DialTimeout("tcp4", to.String(), patience)
		if err == nil {
			c = conn.(*net.TCPConn)
		}
		return err
	})
	return c, err
}

// visit is like dial and exchange, in the background.
func visit(ns string, to netip.AddrPort, size int) <-chan error {
	done := make(chan error, 1)
	go func() {
		conn, err := dial(ns, to)
		if err == nil {
			err = exchange(conn, size)
		}
		done <- err
	}()
	return done
}

// exchange sends bytes to an echo server and checks the answer.
func exchange(c *net.TCPConn, size int) error {
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		return err
	}
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(data)
	if _, err := c.Write(data); err != nil {
		return fmt.Errorf("sending %d bytes: %w", size, err)
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err != nil {
		return fmt.Errorf("after %d bytes of the answer: %w", len(got), err)
	}
	sum := sha256.Sum256(data)
	if len(got) != len(sum)+size || !bytes.Equal(got[:len(sum)], sum[:]) || !bytes.Equal(got[len(sum):], data) {
		return fmt.Errorf("%d bytes came back, want %d, or they differ", len(got), len(sum)+size)
	}
	return nil
}

// eventually waits until f returns nil.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// wantClosed waits until pod i has had a number of flows and none is left.
func (n *network) wantClosed(i int, flows uint64) {
	n.Helper()
	eventually(n, func() error {
		c, err := n.g.PodCounters(vip, uint64(i))
		if err == nil && (c.Open != 0 || c.HalfOpen != 0 || c.NewFlows != flows) {
			err = fmt.Errorf("pod %d: %d open, %d half-open, %d new; want 0, 0, %d", i, c.Open, c.HalfOpen, c.NewFlows, flows)
		}
		return err
	})
}

// offload enables or disables a device's checksum offload, and with it segmentation offload.
func offload(t *testing.T, ns, device string, on bool) {
	t.Helper()
	if err := inNamespace(ns, func() error { return netlab.SetChecksumOffload(device, on) }); err != nil {
		t.Fatal(err)
	}
}

// clients are the clients, by namespace.
var clients = []struct{ name, ns, addr string }{{"another host", "client", client.Addr().String()},
	{"this node", "", ""}, {"another pod", "pod2", podAt[2].Addr().String()}}

// The first SYN is parked, the same connection is served, and 10 MB go both ways: in every XDP mode, with and without
// offloads, for clients everywhere.
func TestColdAndWarmConnectionsCarryData(t *testing.T) {
	const size = 10 << 20
	for _, mode := range []XDPMode{XDPNative, XDPGeneric, XDPOff} {
		for _, mtu := range []int{1500, 9000} {
			for _, offloads := range []bool{true, false} {
				if mtu == 9000 && !offloads || mode == XDPGeneric && mtu == 9000 {
					continue // covered by the others
				}
				t.Run(fmt.Sprintf("xdp %s, mtu %d, offloads %v", mode, mtu, offloads), func(t *testing.T) {
					n := newNetwork(t, mode, mtu)
					if got := n.g.Attached()["eth0"].Mode; got != mode {
						t.Fatalf("XDP is %s", got)
					}
					for _, d := range [][2]string{{"", "eth0"}, {"client", "eth0"}, {"pod1", "eth0"}, {"", "pod1"}, {"pod2", "eth0"},
						{"", "pod2"}, {"", InnerDevice}} {
						offload(t, d[0], d[1], offloads)
					}
					n.service()
					from := echo(n, podNS(1), podAt[1])
					for i, c := range clients {
						done := visit(c.ns, vip, size)
						n.ev.await(t, EventWake, i+1)
						n.addPod(vip, 1)
						if released, err := n.g.Serve(vip, 1); err != nil || released != 1 {
							t.Errorf("%s: %d SYNs released, %v", c.name, released, err)
						}
						if err := <-done; err != nil {
							t.Fatalf("%s: %v; gate: %v", c.name, err, counted(t, n.g))
						}
						if a := (<-from).Addr().String(); c.addr != "" && a != c.addr {
							t.Errorf("%s: the pod saw %s, want %s", c.name, a, c.addr)
						}
						n.wantClosed(1, 1)
						// A warm connection.
						conn, err := dial(c.ns, vip)
						n.must(err)
						n.must(exchange(conn, 1000))
						<-from
						n.wantClosed(1, 2)
						n.must(n.g.RemovePod(vip, 1))
					}
					got := counted(t, n.g)
					delete(got, "arp_replies")
					if len(got) > 0 {
						t.Errorf("counted %v", got)
					}
				})
			}
		}
	}
}

// counted returns the gate's nonzero counters.
func counted(t testing.TB, g *Gate) map[string]uint64 {
	t.Helper()
	all, err := g.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range all {
		if v == 0 {
			delete(all, k)
		}
	}
	return all
}

// A port without a service and a failed wake get a RST at once that clients accept, whichever device completes
// checksums.
func TestRefusalsAndPingsAreAnswered(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	n.service()
	refused := func(what string, err error, took time.Duration) {
		t.Helper()
		if !errors.Is(err, syscall.ECONNREFUSED) || took > 10*time.Second {
			t.Errorf("%s: %v after %v; want refused at once", what, err, took)
		}
	}
	wakes := 0
	for _, offloads := range [][2]bool{{true, true}, {true, false}, {false, true}} { // of the sender and of the node
		for _, c := range clients {
			name := fmt.Sprintf("%s, offloads %v", c.name, offloads)
			if c.ns != "" {
				offload(t, c.ns, "eth0", offloads[0])
			}
			for _, d := range []string{"eth0", "pod2", InnerDevice} {
				offload(t, "", d, offloads[1])
			}
			start := time.Now()
			_, err := dial(c.ns, netip.AddrPortFrom(vip.Addr(), 81))
			refused(name+", no service", err, time.Since(start))

			done := make(chan error, 1)
			go func() {
				_, err := dial(c.ns, vip)
				done <- err
			}()
			wakes++
			n.ev.await(t, EventWake, wakes)
			start = time.Now()
			if n := n.g.Refuse(vip); n != 1 {
				t.Errorf("%s: %d refused", name, n)
			}
			refused(name+", failed wake", <-done, time.Since(start))
			if err := pingOnce(c.ns, vip.Addr()); err != nil {
				t.Errorf("%s: ping: %v", name, err)
			}
		}
	}
}

// pingOnce sends an ICMP echo request from a namespace and waits for the reply.
func pingOnce(ns string, to netip.Addr) error {
	return inNamespace(ns, func() error {
		c, err := net.Dial("ip4:icmp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		body := bytes.Repeat([]byte("ping"), 100)
		msg := append([]byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}, body...)
		sum := ^fold16(sum16(0, msg))
		msg[2], msg[3] = byte(sum>>8), byte(sum)
		if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write(msg); err != nil {
			return err
		}
		got := make([]byte, 2000)
		for {
			m, _, err := c.(*net.IPConn).ReadFrom(got) // without the IP header
			if err != nil {
				return err
			}
			if b := got[:m]; m == len(msg) && b[0] == 0 && bytes.Equal(b[4:], msg[4:]) {
				if fold16(sum16(0, b)) != 0xffff {
					return errors.New("the reply's checksum is wrong")
				}
				return nil
			}
		}
	})
}

// clientBehindSmallMTU makes the namespace client the router to a client in the namespace far, 10.46.201.10. The link
// between the two has an MTU of 1300. far announces the MSS of an MTU of 1500, so that pods send larger packets than
// the link takes; its own packets fit, as a pair of devices drops larger ones without an ICMP error.
func clientBehindSmallMTU(t *testing.T) {
	t.Helper()
	newNamespace(t, "far")
	sh(t, `ip -n client link add far0 mtu 1300 type veth peer name eth0 netns far
		ip -n client addr add 10.46.201.1/24 dev far0; ip -n client link set far0 up
		ip -n far addr add 10.46.201.10/24 dev eth0; ip -n far link set eth0 mtu 1300 up
		ip -n far route add default via 10.46.201.1 advmss 1460
		ip netns exec client sysctl -qw net.ipv4.ip_forward=1`)
}

// A router with a smaller MTU makes the pod send smaller segments.
func TestPathMTUReachesPods(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	clientBehindSmallMTU(t)
	sh(t, "ip route add 10.46.201.0/24 via %v", client.Addr())
	n.service()
	echo(n, podNS(1), podAt[1])
	n.addPod(vip, 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	c, err := dial("far", vip)
	n.must(err)
	n.must(exchange(c, 1<<20))
	if got := counted(t, n.g); got["icmp_errors"] == 0 {
		t.Errorf("no ICMP error was forwarded to the pod: %v", got)
	}
	if r := sh(t, "ip -n pod1 route get 10.46.201.10"); !strings.Contains(r, "mtu 1300") {
		t.Errorf("the pod's route to the client: %s", r)
	}
	n.wantClosed(1, 1)
}

// sendRaw sends frames from the client's end of the link.
func (n *network) sendRaw(frames ...[]byte) {
	n.Helper()
	n.must(inNamespace("client", func() error {
		inj, err := newInjector(0)
		if err != nil {
			return err
		}
		defer inj.close()
		index := linkByName(n, "eth0").Attrs().Index
		for _, f := range frames {
			if err := inj.send(index, f); err != nil {
				return fmt.Errorf("sending %d bytes: %w", len(f), err)
			}
		}
		return nil
	}))
}

// Frames with a VLAN tag, for other hosts, or shorter than an IP header are ignored in any XDP mode.
func TestTaggedForeignAndShortFramesAreIgnored(t *testing.T) {
	for _, mode := range []XDPMode{XDPNative, XDPGeneric, XDPOff} {
		t.Run(string(mode), func(t *testing.T) {
			n := newNetwork(t, mode, 1500)
			n.service()
			s := segment{from: client, to: vip, flags: "S", seq: 1000, options: synOptions, src: clientMAC,
				dst: linkByName(t, "eth0").Attrs().HardwareAddr}
			syn := s.frame()
			tagged := append(append(bytes.Clone(syn[:12]), 0x81, 0, 0, 5), syn[12:]...)
			other := bytes.Clone(syn)
			other[5] ^= 1
			frames := [][]byte{tagged, other}
			for i := ethernetHeader + 1; i < 34; i++ {
				frames = append(frames, syn[:i])
			}
			n.sendRaw(frames...)
			n.sendRaw(syn) // arrives last
			n.ev.await(t, EventWake, 1)
			if c := n.g.ServiceCounters(vip); c.Parked != 1 || c.Duplicates != 0 || len(counted(t, n.g)) != 0 {
				t.Errorf("%+v, counted %v", c, counted(t, n.g))
			}
		})
	}
}

// A tag with VLAN 0 tells the priority of a frame and nothing else (IEEE 802.1Q): such frames are the interface's own.
func TestPriorityTagsAreIgnored(t *testing.T) {
	for _, mode := range []XDPMode{XDPNative, XDPOff} {
		t.Run(string(mode), func(t *testing.T) {
			n := newNetwork(t, mode, 1500)
			n.service()
			n.must(n.g.AnnounceVIP(vip.Addr(), true))
			node := linkByName(t, "eth0").Attrs().HardwareAddr
			tagged := func(f []byte, tci uint16) []byte {
				b := binary.BigEndian.AppendUint16(append(bytes.Clone(f[:12]), 0x81, 0), tci)
				return append(b, f[12:]...)
			}
			for i, tci := range []uint16{0, 5 << 13} {
				s := segment{from: client, to: vip, flags: "S", seq: 1000 + uint32(i), options: synOptions, src: clientMAC,
					dst: node}
				n.sendRaw(tagged(arpFrame(1, client.Addr(), vip.Addr()), tci), tagged(s.frame(), tci))
				eventually(t, func() error {
					c := n.g.ServiceCounters(vip)
					if got := counted(t, n.g)["arp_replies"]; c.ParkedNow != 1 || got != uint64(i+1) {
						return fmt.Errorf("TCI %#x: %+v, %d ARP replies", tci, c, got)
					}
					return nil
				})
				n.g.Refuse(vip)
			}
			// Those of a VLAN are not. The last frame arrives last.
			of5 := segment{from: client, to: vip, flags: "S", seq: 7, options: synOptions, src: clientMAC, dst: node}
			last := of5
			last.to = vip2
			before := n.g.ServiceCounters(vip)
			n.sendRaw(tagged(of5.frame(), 5), last.frame())
			eventually(t, func() error {
				if c := n.g.ServiceCounters(vip2); c.ParkedNow != 1 {
					return fmt.Errorf("%+v", c)
				}
				return nil
			})
			if after := n.g.ServiceCounters(vip); after != before {
				t.Errorf("a frame of VLAN 5: %+v, then %+v", before, after)
			}
		})
	}
}

// LISTEN is reported for the pod's port, on addresses that clients can reach.
func TestListenIsReported(t *testing.T) {
	n := newNetwork(t, XDPOff, 1500)
	n.service()
	n.addPod(vip, 1)
	watchListen(n, n.g, "pod1", 1)
	listen := func(ns, network, addr string) {
		t.Helper()
		n.must(inNamespace(ns, func() error {
			var config net.ListenConfig
			config.SetMultipathTCP(false) // it uses several sockets
			l, err := config.Listen(context.Background(), network, addr)
			if err == nil {
				l.Close()
			}
			return err
		}))
	}
	port := fmt.Sprintf(":%d", podAt[1].Port())
	listen("pod1", "tcp4", "127.0.0.1"+port)
	listen("pod1", "tcp4", ":9999")
	listen("pod2", "tcp4", port)
	listen("", "tcp4", port)
	listen("pod1", "tcp4", podAt[1].String())
	listen("pod1", "tcp4", port)
	got := n.ev.await(t, EventListen, 2)
	if len(got) != 2 || got[0].Service != vip || got[0].Pod != 1 || got[0].At == 0 {
		t.Errorf("%+v, want two of pod 1", got)
	}
	n.must(n.g.RemovePod(vip, 1))
	listen("pod1", "tcp4", port)
	n.addPod(vip, 1)
	watchListen(n, n.g, "pod1", 1)
	listen("pod1", "tcp4", port)
	if got := n.ev.await(t, EventListen, 3); len(got) != 3 {
		t.Errorf("%d events, want 3", len(got))
	}
}

// Traffic continues while no process holds the gate, SYNs of a cold service wait, and the next process finds both.
func TestNextProcessAdoptsTheGate(t *testing.T) {
	n := newNetwork(t, XDPAuto, 1500)
	n.service()
	echo(n, podNS(1), podAt[1])
	n.addPod(vip, 1)
	_, err := n.g.Serve(vip, 1)
	n.must(err)
	open, err := dial("client", vip)
	n.must(err)

	before := n.g
	n.open() // a second process, while the first still runs
	n.must(before.Close())
	cold := make(chan error, 1)
	go func() {
		_, err := dial("client", vip2)
		cold <- err
	}()
	n.ev.await(t, EventWake, 1)
	n.must(n.g.Close())

	// No process holds the gate.
	warm, err := dial("client", vip)
	n.must(err)
	n.must(exchange(warm, 1<<20))

	n.open()
	n.wantClosedBut(1, 1, 2)
	n.must(exchange(open, 1<<20))
	n.wantClosed(1, 2)
	if p := n.g.Pending(); len(p) != 1 || p[0] != vip2 {
		t.Errorf("pending: %v", p)
	}
	if n.g.Refuse(vip2) != 1 {
		t.Error("the parked SYN was lost")
	}
	if err := <-cold; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	if len(n.g.Services()) != 2 || len(n.g.PodIDs(vip)) != 1 || n.g.ServiceState(vip) != Warm ||
		n.g.ServiceState(vip2) != Cold {
		t.Errorf("adopted: %v, pods %v", n.g.Services(), n.g.PodIDs(vip))
	}
}

// wantClosedBut waits until a pod has had a number of flows, of which some are open.
func (n *network) wantClosedBut(i int, open uint32, flows uint64) {
	n.Helper()
	eventually(n, func() error {
		c, err := n.g.PodCounters(vip, uint64(i))
		if err == nil && (c.Open != open || c.NewFlows != flows) {
			err = fmt.Errorf("pod %d: %d open, %d new; want %d, %d", i, c.Open, c.NewFlows, open, flows)
		}
		return err
	})
}

func TestEventsAreReadAheadOfOtherWork(t *testing.T) {
	need.Root(t)
	const least = 20 // getpriority(2): the system call returns 20 less the nice value
	before, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	reads := make(chan int)
	go func() {
		raisePriority()
		now, _ := unix.Getpriority(unix.PRIO_PROCESS, 0)
		reads <- now
	}()
	if now := <-reads; now != least-eventsNice {
		t.Errorf("the thread that reads events has priority %d, want %d", now, least-eventsNice)
	}
	if after, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || after == least-eventsNice && after != before {
		t.Errorf("other threads have priority %d, %v", after, err)
	}
}
