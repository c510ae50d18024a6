// SPDX-License-Identifier: Apache-2.0

package netlab_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
	"wangell.loutres.me/test/testutil/netlab"
	"wangell.loutres.me/test/testutil/netlab/netlabtest"
	"wangell.loutres.me/test/testutil/tcpserver"
)

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// echo runs an echo server on a host until the test ends.
func echo(t *testing.T, on *netlab.Namespace, port string) {
	t.Helper()
	l, err := on.Listen(testContext(t), "tcp4", on.Addr.String()+":"+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	tcpserver.Serve(l, tcpserver.Echo)
}

func exchange(t *testing.T, from *netlab.Namespace, address string) (local netip.AddrPort) {
	t.Helper()
	c, err := from.Dialer().DialContext(testContext(t), "tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := c.Write([]byte("ping\n")); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil || line != "ping\n" {
		t.Fatalf("answer %q, %v", line, err)
	}
	return c.LocalAddr().(*net.TCPAddr).AddrPort()
}

func TestHostsExchangeTraffic(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Run("full checksums "+strconv.FormatBool(full), func(t *testing.T) {
			n := netlabtest.New(t, netlab.Config{Clients: 2, FullChecksums: full})
			echo(t, n.Node, "7")
			for i, c := range n.Clients {
				local := exchange(t, c, n.Node.Addr.String()+":7")
				if local.Addr() != c.Addr || !strings.HasSuffix(c.Addr.String(), "."+strconv.Itoa(10+i)) {
					t.Errorf("client %d connected from %s, has address %s", i, local, c.Addr)
				}
			}
			echo(t, n.Clients[1], "7")
			exchange(t, n.Clients[0], n.Clients[1].Addr.String()+":7")
		})
	}
}

// A node of Wangell finds its external devices by their default routes, so the node must have one.
func TestClientsLookUpServiceAddressesByARP(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	err := n.Node.Do(func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		found := false
		for _, r := range routes {
			if r.Gw != nil && (r.Dst == nil || r.Dst.IP.IsUnspecified()) {
				l, err := netlink.LinkByIndex(r.LinkIndex)
				if err != nil {
					return err
				}
				found = l.Attrs().Name == netlab.Device
			}
		}
		if !found {
			t.Errorf("node has no default route by %s: %v", netlab.Device, routes)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	capture, err := n.Link.Capture("client0")
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	dialCtx, cancel := context.WithCancel(ctx)
	go func() {
		_, err := capture.Wait(ctx, func(p netlab.Packet) bool {
			// Ethernet type 0x0806, operation 1, target address at 38 (RFC 826).
			return len(p.Data) >= 42 && p.Data[12] == 8 && p.Data[13] == 6 && p.Data[21] == 1 &&
				bytes.Equal(p.Data[38:42], []byte{10, 46, 100, 9})
		})
		if err != nil {
			t.Error(err)
		}
		cancel()
	}()
	if c, err := n.Client().Dialer().DialContext(dialCtx, "tcp4", "10.46.100.9:80"); err == nil {
		c.Close()
		t.Error("connected to a service address although no gate runs")
	}
	<-dialCtx.Done()
	if _, err := capture.Close(); err != nil {
		t.Error(err)
	}
	_, err = n.Client().Dialer().Dial("tcp4", "localhost:80")
	if err == nil || !strings.Contains(err.Error(), "IP address") {
		t.Errorf("dialing a name: %v", err)
	}
}

func TestDoRestoresTheThreadsNamespace(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	read := func() string {
		s, err := os.Readlink("/proc/thread-self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for range 20 {
		before := read()
		var node, client, again string
		err := n.Node.Do(func() error {
			node = read()
			err := n.Client().Do(func() error { client = read(); return nil })
			again = read()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if after := read(); node == before || client == node || client == before || again != node || after != before {
			t.Fatalf("before %s, node %s, client %s, node again %s, after %s", before, node, client, again, after)
		}
	}
}

func TestCommandRunsInTheNamespace(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	out, err := n.Node.Command(testContext(t), "cat", "/proc/net/fib_trie").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), n.Node.Addr.String()) {
		t.Errorf("the command does not see the node's address:\n%s", out)
	}
	if list, err := exec.Command("ip", "netns").Output(); err != nil || !strings.Contains(string(list), n.Node.Name) {
		t.Errorf("ip netns does not show %s: %v\n%s", n.Node.Name, err, list)
	}
}

func TestSYNRetransmitsAreCounted(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	if got, err := n.Client().SYNRetransmits(); err != nil || got != 0 {
		t.Fatalf("at first: %d, %v", got, err)
	}
	// The node receives the SYN to 10.46.100.9 and stays silent, so the client must retransmit it.
	err := n.Node.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		_, quiet, _ := net.ParseCIDR("10.46.100.9/32")
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: quiet}); err != nil {
			return err
		}
		// Answers have no way back.
		_, back, _ := net.ParseCIDR(n.Client().Addr.String() + "/32")
		return netlink.RouteAdd(&netlink.Route{Dst: back, Type: unix.RTN_BLACKHOLE})
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := n.Node.Listen(testContext(t), "tcp4", "10.46.100.9:80")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := n.Client().Dialer().DialContext(ctx, "tcp4", "10.46.100.9:80"); err == nil {
			c.Close()
		}
	}()
	for {
		got, err := n.Client().SYNRetransmits()
		if err != nil {
			t.Fatal(err)
		}
		if got > 0 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("no retransmission was counted")
		}
		time.Sleep(50 * time.Millisecond)
	}
	cancel()
	<-done
}

func TestCaptureSeesTheHandshake(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	echo(t, n.Node, "7")
	capture, err := n.Client().Capture(netlab.Device)
	if err != nil {
		t.Fatal(err)
	}
	local := exchange(t, n.Client(), n.Node.Addr.String()+":7")
	_, err = capture.Wait(testContext(t), func(p netlab.Packet) bool {
		_, tcp, ok := p.TCP()
		return ok && p.Outgoing && tcp.FIN
	})
	if err != nil {
		t.Fatal(err)
	}
	packets, err := capture.Close()
	if err != nil {
		t.Fatal(err)
	}
	var syn, synAck int
	for _, p := range packets {
		ip, tcp, ok := p.TCP()
		switch {
		case ok && tcp.SYN && !tcp.ACK && p.Outgoing && uint16(tcp.SrcPort) == local.Port():
			syn++
		case ok && tcp.SYN && tcp.ACK && !p.Outgoing && ip.SrcIP.String() == n.Node.Addr.String():
			synAck++
		}
	}
	if syn != 1 || synAck != 1 {
		t.Errorf("%d SYNs and %d SYN-ACKs among %d packets, want 1 and 1", syn, synAck, len(packets))
	}
	if _, err := n.Client().Capture("nosuch0"); err == nil || !strings.Contains(err.Error(), "nosuch0") {
		t.Errorf("capture at a device that is not there: %v", err)
	}
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	need.Root(t)
	// Only namespaces of this process, because another test binary may run at the same time.
	scope := netlab.Scope{Paths: []string{netlab.Dir + "/" + netlab.Prefix + strconv.Itoa(os.Getpid())}, OwnProcess: true,
		Namespaces: []string{netlab.Prefix + strconv.Itoa(os.Getpid()) + "-"},
		Devices:    []string{"veth", "client", "node", "br"}}
	before, err := netlab.TakeSnapshot(scope)
	if err != nil {
		t.Fatal(err)
	}
	n, err := netlab.New(netlab.Config{Clients: 3})
	if err != nil {
		t.Fatal(err)
	}
	during, err := netlab.TakeSnapshot(scope)
	if err != nil {
		t.Fatal(err)
	}
	if diff := before.Diff(during); len(diff) < 5 {
		t.Errorf("a network of 5 namespaces differs from none only by %q", diff)
	}
	sleeper := n.Node.Command(testContext(t), "sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	waitInside(t, sleeper.Process.Pid, n.Node)
	err = n.Close()
	if err == nil || !strings.Contains(err.Error(), "sleep 1000") {
		t.Errorf("Close with a process inside: %v", err)
	}
	if err := sleeper.Wait(); err == nil {
		t.Error("the process inside was not killed")
	}
	if err := n.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	diff, err := before.WaitSame(testContext(t), scope)
	if err != nil || len(diff) > 0 {
		t.Errorf("after Close: %q, %v", diff, err)
	}
}

// waitInside waits until a process has entered a namespace, for which nsenter takes a moment.
func waitInside(t *testing.T, pid int, ns *netlab.Namespace) {
	t.Helper()
	want, err := os.Stat(ns.Path)
	if err != nil {
		t.Fatal(err)
	}
	for ctx := testContext(t); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		got, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/ns/net")
		comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
		if err == nil && os.SameFile(got, want) && string(comm) == "sleep\n" {
			return
		}
	}
	t.Fatal("the process never entered the namespace")
}

// The test kills a process that has created a network.
func TestNewRemovesNetworksOfKilledProcesses(t *testing.T) {
	if os.Getenv("NETLAB_TEST_MAKER") != "" {
		n, err := netlab.New(netlab.Config{})
		if err != nil {
			t.Fatal(err)
		}
		sleeper := n.Node.Command(context.Background(), "sleep", "1000")
		if err := sleeper.Start(); err != nil {
			t.Fatal(err)
		}
		waitInside(t, sleeper.Process.Pid, n.Node)
		os.Stdout.WriteString("made " + n.Node.Name + " " + strconv.Itoa(sleeper.Process.Pid) + "\n")
		select {}
	}
	living := netlabtest.New(t, netlab.Config{})
	maker := exec.CommandContext(testContext(t), os.Args[0], "-test.run=^TestNewRemovesNetworksOfKilledProcesses$")
	maker.Env = append(os.Environ(), "NETLAB_TEST_MAKER=1")
	out, err := maker.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := maker.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	fields := strings.Fields(line)
	if err != nil || len(fields) != 3 || fields[0] != "made" {
		t.Fatalf("the maker said %q, %v", line, err)
	}
	stale, sleeper := filepath.Join(netlab.Dir, fields[1]), fields[2]
	if err := netlab.CleanStale(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); err != nil {
		t.Fatalf("a living process's namespace was removed: %v", err)
	}
	if err := maker.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = maker.Wait()
	if err := netlab.CleanStale(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", stale, err)
	}
	if stat, err := os.ReadFile("/proc/" + sleeper + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("the process in it still runs: %s", stat)
	}
	if _, err := os.Stat(living.Node.Path); err != nil {
		t.Errorf("our own namespace was removed: %v", err)
	}
}

func TestSnapshotSeesLeaks(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	scope := netlab.Scope{Paths: []string{dir}, OwnProcess: true, BPF: []string{"wgl_leak"}}
	before, err := netlab.TakeSnapshot(scope)
	if err != nil {
		t.Fatal(err)
	}
	// One process that names the folder, without a child that could outlive it.
	sleeper := exec.Command("tail", "-f", "/dev/null", dir)
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "wgl_leak_test", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	calls, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "wgl_leak_calls", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer calls.Close()
	after, err := netlab.TakeSnapshot(scope)
	if err != nil {
		t.Fatal(err)
	}
	diff := strings.Join(before.Diff(after), "\n")
	for _, want := range []string{"left: process ", "left: eBPF map wgl_leak_test", "left: eBPF map wgl_leak_calls",
		"left: open eBPF map_id"} {
		if !strings.Contains(diff, want) {
			t.Errorf("no %q in the difference:\n%s", want, diff)
		}
	}
	if back := after.Diff(before); len(back) != len(before.Diff(after)) || !strings.HasPrefix(back[0], "gone: ") {
		t.Errorf("the difference backwards: %q", back)
	}
}

func TestInvalidConfigsAreRefused(t *testing.T) {
	for name, cfg := range map[string]netlab.Config{
		"too many clients": {Clients: 201},
		"small link":       {Link: netip.MustParsePrefix("10.46.200.0/28")},
		"IPv6 link":        {Link: netip.MustParsePrefix("fd00::/64")},
		"IPv6 services":    {Services: netip.MustParsePrefix("fd00::/64")},
		"overlap":          {Services: netip.MustParsePrefix("10.46.0.0/16")},
	} {
		if n, err := netlab.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
			_ = n.Close()
		}
	}
}

// Without FullChecksums, the sender leaves checksums to the device.
func TestFullChecksumsAreOnTheLink(t *testing.T) {
	for _, full := range []bool{false, true} {
		n := netlabtest.New(t, netlab.Config{FullChecksums: full})
		echo(t, n.Node, "7")
		capture, err := n.Link.Capture("client0")
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, n.Client(), n.Node.Addr.String()+":7")
		p, err := capture.Wait(testContext(t), func(p netlab.Packet) bool {
			_, tcp, ok := p.TCP()
			return ok && !p.Outgoing && len(tcp.Payload) > 0
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := capture.Close(); err != nil {
			t.Fatal(err)
		}
		ip, tcp, _ := p.TCP()
		if err := tcp.SetNetworkLayerForChecksum(ip); err != nil {
			t.Fatal(err)
		}
		want := tcp.Checksum
		buf := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{ComputeChecksums: true}
		if err := gopacket.SerializeLayers(buf, options, tcp, gopacket.Payload(tcp.Payload)); err != nil {
			t.Fatal(err)
		}
		if right := tcp.Checksum == want; right != full {
			t.Errorf("full checksums %v: the checksum is %#04x, of the bytes %#04x", full, want, tcp.Checksum)
		}
	}
}

func TestSnapshotSeesRoutes(t *testing.T) {
	n := netlabtest.New(t, netlab.Config{})
	scope := netlab.Scope{Routes: true}
	err := n.Client().Do(func() error {
		before, err := netlab.TakeSnapshot(scope)
		if err != nil {
			return err
		}
		for _, argv := range [][]string{
			{"ip", "addr", "add", "10.46.201.1/32", "dev", "lo"},
			{"ip", "route", "add", "10.46.202.0/24", "dev", netlab.Device, "table", "77"},
			{"ip", "rule", "add", "from", "10.46.201.1", "table", "77"},
		} {
			if out, err := n.Client().Command(t.Context(), argv...).CombinedOutput(); err != nil {
				return fmt.Errorf("%v: %w: %s", argv, err, out)
			}
		}
		after, err := netlab.TakeSnapshot(scope)
		if err != nil {
			return err
		}
		diff := strings.Join(before.Diff(after), "\n")
		for _, want := range []string{"left: address 10.46.201.1/32", "10.46.202.0/24", "left: rule "} {
			if !strings.Contains(diff, want) {
				t.Errorf("no %q in the difference:\n%s", want, diff)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
