// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// node is a node with a gate, in a network namespace of its own.
type node struct {
	name string
	addr netip.Addr
	cfg  Config
	g    *Gate
	ev   *events
}

// cluster is a client, an edge node and a home node on one link, each in a network namespace, with pods on both nodes.
type cluster struct {
	*testing.T
	edge, home *node
	change     func(*Config) // of its gates
}

const encapPort = 7947

// nodeSetup makes a node a router with strict reverse-path filters that drops packets that conntrack considers invalid,
// as kube-proxy's rules do.
const nodeSetup = `ip netns exec %[1]s sysctl -qw net.ipv4.ip_forward=1
ip netns exec %[1]s sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1
ip netns exec %[1]s nft 'table ip rules {
	chain forward { type filter hook forward priority 0;
		ct state invalid counter drop
	}
	chain input { type filter hook input priority 0;
		ct state invalid counter drop
	}
	chain output { type filter hook output priority 0;
		ct state invalid counter drop
	}
}'`

func newCluster(t *testing.T, mtu int) *cluster { return newClusterOf(t, mtu, func(*Config) {}) }

func newClusterOf(t *testing.T, mtu int, change func(*Config)) *cluster {
	newNamespace(t, "lan")
	sh(t, "ip -n lan link add br0 mtu %d type bridge; ip -n lan link set br0 up", mtu)
	c := &cluster{T: t, change: change}
	c.plug("client", client.Addr(), mtu)
	sh(t, "ip -n client route add %v dev eth0", serviceRange)
	c.edge = c.join("edge", netip.MustParseAddr("10.46.200.1"), mtu, vip.Addr(), vip2.Addr())
	c.home = c.join("home", netip.MustParseAddr("10.46.200.2"), mtu)
	return c
}

// plug creates a network namespace on the link.
func (c *cluster) plug(name string, addr netip.Addr, mtu int) {
	c.Helper()
	newNamespace(c, name)
	sh(c, `ip link add eth0 mtu %[3]d netns %[1]s type veth peer name %[1]s mtu %[3]d netns lan
		ip -n lan link set %[1]s master br0 up
		ip -n %[1]s addr add %[2]v/24 dev eth0; ip -n %[1]s link set eth0 up`, name, addr, mtu)
}

// join creates a node that announces some VIPs and accepts packets from all nodes.
func (c *cluster) join(name string, addr netip.Addr, mtu int, announced ...netip.Addr) *node {
	c.Helper()
	n := &node{name: name, addr: addr}
	c.plug(name, addr, mtu)
	sh(c, nodeSetup, name)
	n.cfg = Config{Dir: c.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, EncapPort: encapPort, NodeAddr: addr,
		XDPMode: XDPAuto, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)).With("node", name)}
	c.change(&n.cfg)
	c.openBy(openAny, n)
	c.Cleanup(func() {
		c.must(closeAny(n.g, func() error { return inNamespace(n.name, n.cfg.Remove) }))
	})
	var nodes []netip.Addr
	for i := range byte(3) {
		nodes = append(nodes, netip.AddrFrom4([4]byte{10, 46, 200, 1 + i}))
	}
	c.must(n.g.SetNodes(tagging(nodes...)))
	c.must(n.g.SetTagKeys(tagKeys))
	c.must(n.g.Announce(false, announced))
	for _, a := range []netip.AddrPort{vip, vip2} {
		_, err := n.g.SetService(Service{Addr: a, MaxParked: 100, MaxParkedPerSource: 100})
		c.must(err)
	}
	return n
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// in runs f in a node's network namespace.
func (c *cluster) in(n *node, f func() error) {
	c.Helper()
	c.must(inNamespace(n.name, f))
}

func (c *cluster) open(n *node) {
	c.Helper()
	c.openBy(Open, n)
}

func (c *cluster) openBy(open func(Config) (*Gate, error), n *node) {
	c.Helper()
	c.in(n, func() (err error) { n.g, err = open(n.cfg); return err })
	n.ev = (&world{TB: c.T, g: n.g}).events()
}

// podNet creates the network of pod i on a node, with the address podAt[i].
func (c *cluster) podNet(n *node, i, mtu int) {
	c.Helper()
	newNamespace(c, podNS(i))
	sh(c, `ip link add %[1]s mtu %[3]d netns %[5]s address 02:00:00:00:0e:0%[4]d type veth peer name eth0 netns %[1]s
		ip -n %[5]s link set %[1]s up; ip -n %[5]s route add %[2]v/32 dev %[1]s
		ip -n %[1]s link set eth0 mtu %[3]d up; ip -n %[1]s addr add %[2]v/32 dev eth0
		ip -n %[1]s route add 169.254.46.1 dev eth0
		ip -n %[1]s neigh add 169.254.46.1 lladdr 02:00:00:00:0e:0%[4]d dev eth0
		ip -n %[1]s route add default via 169.254.46.1`,
		podNS(i), podAt[i].Addr(), mtu, i, n.name)
}

// addPod adds pod i, which is on a node, to both gates.
func (c *cluster) addPod(service netip.AddrPort, on *node, i int) {
	c.Helper()
	for _, n := range []*node{c.edge, c.home} {
		p := Pod{ID: uint64(i), Service: service, Addr: podAt[i], Node: on.addr}
		if n == on {
			p.Node = netip.Addr{}
			c.must(inNamespace(podNS(i), func() error {
				p.MAC = linkByName(c, "eth0").Attrs().HardwareAddr
				return nil
			}))
			c.in(n, func() error {
				host := linkByName(c, podNS(i)).Attrs()
				p.Ifindex, p.HostMAC = host.Index, host.HardwareAddr
				return nil
			})
		}
		c.in(n, func() error { return n.g.AddPod(p) })
	}
}

// serve makes a pod take flows on both nodes.
func (c *cluster) serve(service netip.AddrPort, i int) (released int) {
	c.Helper()
	for _, n := range []*node{c.home, c.edge} {
		r, err := n.g.Serve(service, uint64(i))
		c.must(err)
		released += r
	}
	return released
}

// wantClosed waits until both nodes have counted n flows of pod i and none is left.
func (c *cluster) wantClosed(i int, flows uint64) {
	c.Helper()
	for _, n := range []*node{c.edge, c.home} {
		eventually(c, func() error {
			p, err := n.g.PodCounters(vip, uint64(i))
			if err == nil && (p.Open != 0 || p.HalfOpen != 0 || p.NewFlows != flows) {
				err = fmt.Errorf("%s: pod %d: %d open, %d half-open, %d new; want 0, 0, %d", n.name, i, p.Open,
					p.HalfOpen,
					p.NewFlows, flows)
			}
			return err
		})
	}
}

// counted returns the nonzero counters of both nodes.
func (c *cluster) counted() map[string]uint64 {
	c.Helper()
	out := map[string]uint64{}
	for _, n := range []*node{c.edge, c.home} {
		for k, v := range counted(c, n.g) {
			out[n.name+" "+k] = v
		}
	}
	return out
}

// wantCounted checks the counters, except for ARP.
func (c *cluster) wantCounted(want map[string]uint64) {
	c.Helper()
	got := c.counted()
	delete(got, "edge arp_replies")
	if !maps.Equal(got, want) && len(got)+len(want) > 0 {
		c.Errorf("counted %v, want %v", got, want)
	}
	for _, n := range []*node{c.edge, c.home} {
		if rules := sh(c, "ip netns exec %s nft list ruleset", n.name); strings.Count(rules,
			"counter packets 0 bytes 0 drop") != 3 {
			c.Errorf("%s: conntrack considered packets invalid: %s", n.name, rules)
		}
	}
}

// plainPod creates the network of a pod on the edge node that is not Wangell's.
func (c *cluster) plainPod(mtu int) netip.Addr {
	c.Helper()
	a := netip.MustParseAddr("10.46.129.9")
	newNamespace(c, "plain")
	sh(c, `ip link add plain mtu %[2]d netns edge type veth peer name eth0 mtu %[2]d netns plain
		ip -n edge addr add 10.46.129.1/24 dev plain; ip -n edge link set plain up
		ip -n plain addr add %[1]v/24 dev eth0; ip -n plain link set eth0 up
		ip -n plain route add default via 10.46.129.1
		ip -n home route add 10.46.129.0/24 via %[3]v`, a, mtu, c.edge.addr)
	return a
}

// wantStraight checks which way an answer of a given size took.
func (c *cluster) wantStraight(straight bool, size uint64) {
	c.Helper()
	edge, err := c.edge.g.PodCounters(vip, 1)
	c.must(err)
	home, err := c.home.g.PodCounters(vip, 1)
	c.must(err)
	if home.BytesOut < size || straight && edge.BytesOut > size/100 || !straight && edge.BytesOut < size {
		c.Errorf("of %d bytes, %d passed the home node and %d the edge node; straight: %v", size, home.BytesOut,
			edge.BytesOut, straight)
	}
}

// Cold and warm connections carry 10 MB both ways, half-closed in between.
func TestRemotePodsServeClientsEverywhere(t *testing.T) {
	for _, v := range []struct {
		mtu                int
		offloads, shortcut bool
	}{{1500, true, false}, {1500, false, false}, {9000, true, false}, {1500, true, true}, {1500, false, true}} {
		t.Run(fmt.Sprintf("mtu %d, offloads %v, shortcut %v", v.mtu, v.offloads, v.shortcut), func(t *testing.T) {
			testRemote(t, v.mtu, v.offloads, v.shortcut)
		})
	}
}

func testRemote(t *testing.T, mtu int, offloads, shortcut bool) {
	const size = 10 << 20
	c := newClusterOf(t, mtu, func(c *Config) { c.Shortcut = shortcut })
	c.podNet(c.home, 1, mtu)
	c.podNet(c.edge, 2, mtu)
	c.addPod(vip2, c.edge, 2)
	plain := c.plainPod(mtu)
	for _, d := range [][2]string{{"client", "eth0"}, {"edge", "eth0"}, {"home", "eth0"}, {"pod1", "eth0"},
		{"home", "pod1"}, {"pod2", "eth0"}, {"edge", "pod2"}, {"plain", "eth0"}, {"edge", "plain"},
		{"edge", InnerDevice}} {
		offload(t, d[0], d[1], offloads)
	}
	from := echo(t, podNS(1), podAt[1])
	wakes := 0
	for _, cl := range []struct {
		ns   string
		addr netip.Addr
	}{{"client", client.Addr()}, {"edge", netip.Addr{}}, {"pod2", podAt[2].Addr()}, {"plain", plain}} {
		done := visit(cl.ns, vip, size)
		wakes++
		c.edge.ev.await(t, EventWake, wakes)
		c.addPod(vip, c.home, 1)
		if released := c.serve(vip, 1); released != 1 {
			t.Errorf("%s: %d SYNs released", cl.ns, released)
		}
		if err := <-done; err != nil {
			t.Fatalf("%s: %v; counted: %v", cl.ns, err, c.counted())
		}
		if a := (<-from).Addr(); cl.addr.IsValid() && a != cl.addr {
			t.Errorf("%s: the pod saw %v, want %v", cl.ns, a, cl.addr)
		}
		c.wantClosed(1, 1)
		c.wantStraight(cl.ns == "client", size)
		conn, err := dial(cl.ns, vip)
		c.must(err)
		c.must(exchange(conn, 1000))
		<-from
		c.wantClosed(1, 2)
		for _, n := range []*node{c.edge, c.home} {
			c.must(n.g.RemovePod(vip, 1))
		}
	}
	var want map[string]uint64
	if shortcut { // two connections of each pod
		want = map[string]uint64{"edge shortcuts": 4}
	}
	c.wantCounted(want)
}

// Either side closes first, or resets. The counts return to zero.
func TestBothNodesCountShortConnections(t *testing.T) {
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	c.addPod(vip, c.home, 1)
	c.serve(vip, 1)
	// The first byte selects what the server does: answer and close, answer and wait for the client to close, or reset.
	serveIn(t, podNS(1), podAt[1], func(conn net.Conn) {
		var b [1]byte
		if _, err := io.ReadFull(conn, b[:]); err != nil {
			return
		}
		switch b[0] {
		case 'r':
			_ = conn.(*net.TCPConn).SetLinger(0)
		case 'c':
			_, _ = conn.Write(make([]byte, 3000))
		default:
			_, _ = conn.Write(make([]byte, 3000))
			_, _ = io.Copy(io.Discard, conn)
		}
	})
	one := func(ns string, kind byte) error {
		conn, err := dial(ns, vip)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return err
		}
		first := kind
		if kind == 'R' { // the client resets with data in flight
			first = 'w'
		}
		if _, err := conn.Write([]byte{first}); err != nil {
			return err
		}
		if kind == 'r' {
			if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
				return fmt.Errorf("the server's reset: %w", err)
			}
			return nil
		}
		if _, err := io.ReadFull(conn, make([]byte, 3000)); err != nil {
			return err
		}
		if kind == 'R' {
			if err := conn.SetLinger(0); err != nil {
				return err
			}
			if _, err := conn.Write(make([]byte, 20000)); err != nil {
				return err
			}
		}
		return nil
	}
	var total uint64
	for _, ns := range []string{"client", "edge"} {
		const workers, each = 10, 50
		errs := make(chan error, workers)
		for w := range workers {
			go func() {
				for i := range each {
					if err := one(ns, "cwcwcwcwrR"[(w+i)%10]); err != nil {
						errs <- fmt.Errorf("%s, connection %d of worker %d: %w", ns, i, w, err)
						return
					}
				}
				errs <- nil
			}()
		}
		for range workers {
			c.must(<-errs)
		}
		total += workers * each
		c.wantClosed(1, total)
	}
	for _, n := range []*node{c.edge, c.home} {
		s, err := n.g.Sweep(Ages{time.Hour, 0, time.Hour, time.Hour})
		if err != nil || s.Fixed != 0 || s.Flows != 0 {
			t.Errorf("%s: sweep: %+v, %v", n.name, s, err)
		}
	}
	got := c.counted()
	t.Logf("counted %v", got)
}

// The processes that reopen the gates are of another version, and their pins are in an existing bpf file system.
func TestConnectionsSurviveReopenedGates(t *testing.T) {
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	c.addPod(vip, c.home, 1)
	c.serve(vip, 1)
	mirror(t, 1)
	done, stop := make(chan error, 2), make(chan struct{})
	for _, ns := range []string{"client", "edge"} {
		conn, err := dial(ns, vip)
		c.must(err)
		go func() { done <- mirrored64k(conn, stop) }()
	}
	c.wantOpen(1, 2)
	for i := range 3 {
		for _, n := range []*node{c.edge, c.home} {
			before := n.g
			n.cfg.ServiceRanges = append(n.cfg.ServiceRanges,
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, byte(i), 0}), 24))
			c.open(n) // other constants stand in for the programs of another version
			c.must(before.Close())
		}
	}
	c.wantOpen(1, 2)
	close(stop)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	c.wantClosed(1, 2)
	if r := sh(t, "ip -n edge route show dev %s", InnerDevice); strings.Count(r, "\n") != 4 {
		t.Errorf("routes:\n%s", r)
	}
	c.edge.cfg.ServiceRanges = c.edge.cfg.ServiceRanges[:1]
	c.must(c.edge.g.Close())
	c.open(c.edge)
	if r := sh(t, "ip -n edge route show dev %s", InnerDevice); strings.Count(r, "\n") != 1 {
		t.Errorf("routes:\n%s", r)
	}
}

// mirrored64k sends 64 KiB at a time and checks that they come back, until it is stopped.
func mirrored64k(c *net.TCPConn, stop <-chan struct{}) error {
	defer c.Close()
	data, got := make([]byte, 64<<10), make([]byte, 64<<10)
	for i := byte(0); ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		for j := range data {
			data[j] = i + byte(j>>8)
		}
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			return err
		}
		if _, err := c.Write(data); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, got); err != nil {
			return err
		}
		if !bytes.Equal(data, got) {
			return errors.New("different bytes came back")
		}
	}
}

// wantOpen waits until pod i of vip has n open flows on both nodes.
func (c *cluster) wantOpen(i int, n uint32) {
	c.Helper()
	c.wantOpenAt(vip, i, n)
}

// wantOpenAt is wantOpen for any service.
func (c *cluster) wantOpenAt(service netip.AddrPort, i int, n uint32) {
	c.Helper()
	for _, at := range []*node{c.edge, c.home} {
		eventually(c, func() error {
			p, err := at.g.PodCounters(service, uint64(i))
			if err == nil && p.Open != n {
				err = fmt.Errorf("%s: pod %d: %d open, want %d", at.name, i, p.Open, n)
			}
			return err
		})
	}
}

// New connections reach the new node without another ARP request. The old node still answers what reaches it.
func TestAnnouncedVIPMoves(t *testing.T) {
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	c.addPod(vip, c.home, 1)
	c.serve(vip, 1)
	echo(t, podNS(1), podAt[1])
	connect := func(edge uint64, home uint64) {
		t.Helper()
		conn, err := dial("client", vip)
		c.must(err)
		c.must(exchange(conn, 1000))
		for n, want := range map[*node]uint64{c.edge: edge, c.home: home} {
			if p, err := n.g.PodCounters(vip, 1); err != nil || p.NewFlows != want {
				t.Errorf("%s: %d flows, want %d; %v", n.name, p.NewFlows, want, err)
			}
		}
	}
	connect(1, 1)
	open, err := dial("client", vip)
	c.must(err)
	c.wantOpen(1, 1)
	asked := func() uint64 {
		t.Helper()
		return counted(t, c.edge.g)["arp_replies"] + counted(t, c.home.g)["arp_replies"]
	}
	before := asked()
	c.must(c.edge.g.AnnounceVIP(vip.Addr(), false))
	c.must(c.home.g.AnnounceVIP(netip.MustParseAddr("10.46.100.99"), true))
	c.must(c.home.g.AnnounceVIP(vip.Addr(), true))
	var mac net.HardwareAddr
	c.in(c.home, func() error { mac = linkByName(t, "eth0").Attrs().HardwareAddr; return nil })
	eventually(t, func() error {
		if r := sh(t, "ip -n client neigh show %v", vip.Addr()); !strings.Contains(r, mac.String()) {
			return fmt.Errorf("the client's neighbor: %s", r)
		}
		return nil
	})
	connect(2, 3)
	// The earlier connection continues: its pod is here.
	c.must(exchange(open, 1<<20))
	if err := pingOnce("client", vip.Addr()); err != nil {
		t.Errorf("ping: %v", err)
	}
	if n := asked() - before; n != 0 {
		t.Errorf("%d ARP requests answered", n)
	}
	// Only the owner answers a new ARP request.
	sh(t, "ip -n client neigh flush dev eth0")
	connect(2, 4)
	if e, h := counted(t, c.edge.g)["arp_replies"], counted(t, c.home.g)["arp_replies"]; h != 1 || e != before {
		t.Errorf("ARP replies: edge %d, home %d", e, h)
	}
	// A reopened gate still answers for its VIPs.
	c.must(c.home.g.Close())
	c.open(c.home)
	sh(t, "ip -n client neigh flush dev eth0")
	connect(2, 5)
}

// Other addresses are left alone, and nothing remains when the service is removed.
func TestVIPOutsideAllRangesIsReachable(t *testing.T) {
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	outside := netip.MustParseAddrPort("192.0.2.7:80")
	routes := func() string { return sh(t, "ip -n edge route show dev %s", InnerDevice) }
	before := routes()
	for _, n := range []*node{c.edge, c.home} {
		_, err := n.g.SetService(Service{Addr: outside, MaxParked: 10, MaxParkedPerSource: 10})
		c.must(err)
	}
	c.addPod(outside, c.home, 1)
	c.serve(outside, 1)
	echo(t, podNS(1), podAt[1])
	sh(t, "ip -n client route add 192.0.2.0/24 via %v", c.edge.addr) // like a router
	for range 2 {
		for _, ns := range []string{"client", "edge"} {
			conn, err := dial(ns, outside)
			c.must(err)
			c.must(exchange(conn, 1<<20))
		}
		c.must(c.edge.g.Close())
		c.open(c.edge) // the next process adopts it
	}
	if _, err := dialWithin("client", netip.MustParseAddrPort("192.0.2.8:80"), 5*time.Second); err == nil {
		t.Error("an address that is not a VIP answers")
	}
	for _, n := range []*node{c.edge, c.home} {
		c.must(n.g.RemovePod(outside, 1))
		c.must(n.g.RemoveService(outside))
	}
	if r := routes(); r != before {
		t.Errorf("routes:\n%s before:\n%s", r, before)
	}
}

// The ICMP error of a router with a smaller MTU reaches the edge node, and makes the pod send smaller segments.
func TestPathMTUReachesRemotePods(t *testing.T) {
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	c.addPod(vip, c.home, 1)
	c.serve(vip, 1)
	echo(t, podNS(1), podAt[1])
	clientBehindSmallMTU(t)
	sh(t, "ip -n edge route add 10.46.201.0/24 via %[1]v; ip -n home route add 10.46.201.0/24 via %[1]v", client.Addr())
	conn, err := dial("far", vip)
	c.must(err)
	c.must(exchange(conn, 1<<20))
	if r := sh(t, "ip -n pod1 route get 10.46.201.10"); !strings.Contains(r, "mtu 1300") {
		t.Errorf("the pod's route to the client: %s", r)
	}
	c.wantClosed(1, 1)
}

// A pod on another node takes new connections.
func TestClientsOfALostNodeAreReset(t *testing.T) {
	c := newCluster(t, 1500)
	c.podNet(c.home, 1, 1500)
	c.podNet(c.edge, 2, 1500)
	c.addPod(vip, c.home, 1)
	c.serve(vip, 1)
	echo(t, podNS(1), podAt[1])
	echo(t, podNS(2), podAt[2])
	conn, err := dial("client", vip)
	c.must(err)
	defer conn.Close()
	sh(t, "ip -n lan link set home down")
	for _, n := range []*node{c.edge, c.home} {
		c.must(n.g.RemovePod(vip, 1))
	}
	c.addPod(vip, c.edge, 2)
	c.serve(vip, 2)
	c.must(conn.SetDeadline(time.Now().Add(20 * time.Second)))
	if _, err := conn.Write([]byte("?")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection to a lost pod: %v", err)
	}
	conn2, err := dial("client", vip)
	c.must(err)
	c.must(exchange(conn2, 1000))
}

// Each announcement is repeated after each pause, whenever the goroutine that repeats them comes to it.
func TestAnnouncementsAreRepeatedAfterEachPause(t *testing.T) {
	a, b := netip.MustParseAddr("10.46.0.1"), netip.MustParseAddr("10.46.0.2")
	begin := time.Unix(100, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	var r repeats
	if !r.empty() {
		t.Fatal("new repeats are not empty")
	}
	r.push(0, []netip.Addr{a}, at(0))
	r.push(0, []netip.Addr{b}, at(150))
	for _, step := range []struct {
		now  int
		due  []netip.Addr
		next int // 0: none
	}{
		{199, nil, 200},
		{210, []netip.Addr{a}, 350},
		{360, []netip.Addr{b}, 1210},
		{1209, nil, 1210},
		{1500, []netip.Addr{a, b}, 0},
	} {
		due, next := r.take(at(step.now)), r.next()
		want := time.Time{}
		if step.next > 0 {
			want = at(step.next)
		}
		if !slices.Equal(due, step.due) || !next.Equal(want) {
			t.Fatalf("at %d ms: due %v, next %v, want %v, %v", step.now, due, next, step.due, want)
		}
	}
	if !r.empty() {
		t.Error("repeats are left")
	}
}
