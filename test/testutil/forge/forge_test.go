// SPDX-License-Identifier: Apache-2.0

package forge

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/ownns"
)

func TestMain(m *testing.M) { ownns.Main(m.Run) }

func TestForgedSYNsAreValidAndDiffer(t *testing.T) {
	out, err := exec.Command("sh", "-ec", `sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
		ip link add forge type veth peer name sink; ip link set forge up; ip link set sink up`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "forge").Run() })
	tool, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer tool.Close()
	if err := tool.Change("sink", map[string]bool{"rx-gro": true}); err != nil {
		t.Fatal(err)
	}
	sink, err := net.InterfaceByName("sink")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const n = 300
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<21),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0008 /* ETH_P_IP in network order */, Ifindex: sink.Index}),
	); err != nil {
		t.Fatal(err)
	}
	sources := netip.MustParsePrefix("10.47.0.0/16")
	services := []netip.AddrPort{netip.MustParseAddrPort("10.46.100.5:80"), netip.MustParseAddrPort("10.46.255.254:65535"),
		netip.MustParseAddrPort("192.0.2.0:1")}
	s, err := Open(Config{Device: "forge", From: net.HardwareAddr{2, 0, 0, 0, 0, 1}, To: sink.HardwareAddr,
		Sources: sources, Services: services, Batch: 128})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if sent, err := s.Send(context.Background(), n, 0); err != nil || sent != n {
		t.Fatalf("%d sent: %v", sent, err)
	}
	type name struct {
		from netip.AddrPort
		seq  uint32
	}
	seen, addrs, to := map[name]bool{}, map[netip.Addr]bool{}, map[netip.AddrPort]int{}
	for range n {
		b := make([]byte, 2048)
		got, _, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			t.Fatalf("after %d frames: %v", len(seen), err)
		}
		f := b[:got]
		if got != frameLen || sum(f[14:34], 0) != 0xffff ||
			sum(f[34:], uint32(sum(f[26:34], 0))+unix.IPPROTO_TCP+frameLen-34) != 0xffff {
			t.Fatalf("not valid: %x", f)
		}
		src, _ := netip.AddrFromSlice(f[26:30])
		dst, _ := netip.AddrFromSlice(f[30:34])
		port := binary.BigEndian.Uint16(f[34:])
		to[netip.AddrPortFrom(dst, binary.BigEndian.Uint16(f[36:]))]++
		if !sources.Contains(src) || port < 1024 || f[47] != 2 {
			t.Errorf("a frame from %v:%d to %v: %x", src, port, dst, f)
		}
		seen[name{netip.AddrPortFrom(src, port), binary.BigEndian.Uint32(f[38:])}] = true
		addrs[src] = true
	}
	if len(seen) < n-2 || len(addrs) < n/2 {
		t.Errorf("%d different SYNs of %d addresses", len(seen), len(addrs))
	}
	for _, service := range services {
		if to[service] < n/len(services)/2 {
			t.Errorf("%d of %d SYNs are for %v", to[service], n, service)
		}
	}
	if len(to) != len(services) {
		t.Errorf("they are for %v", to)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if sent, err := s.Send(ctx, n, 0); err != nil || sent != 0 {
		t.Errorf("%d sent after the end: %v", sent, err)
	}
}

// The rate and the number of a flood have limits that all threads observe together.
func TestPaceOfAFlood(t *testing.T) {
	p := &pace{left: 2500, batch: 1000, rate: 100_000}
	begin := time.Now()
	for i, want := range []int{1000, 1000, 500, 0} {
		batch := p.next(context.Background())
		if batch != want {
			t.Errorf("batch %d: %d SYNs, want %d", i, batch, want)
		}
		if due := time.Duration(i) * 10 * time.Millisecond; batch > 0 && time.Since(begin) < due {
			t.Errorf("batch %d after %v, want %v", i, time.Since(begin), due)
		}
	}
	// A flood that was held up does not make up for all of it.
	p = &pace{left: 1 << 30, batch: 1000, rate: 100_000}
	p.next(context.Background())
	p.due = time.Now().Add(-time.Hour)
	begin = time.Now()
	for range 20 {
		p.next(context.Background())
	}
	if took := time.Since(begin); took < 80*time.Millisecond {
		t.Errorf("20,000 SYNs in %v", took)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if batch := p.next(ctx); batch != 0 {
		t.Errorf("%d SYNs after the end", batch)
	}
}

// TestAnswersAreAbsorbed checks that what is for the forged sources ends at the device, and nothing else does.
func TestAnswersAreAbsorbed(t *testing.T) {
	out, err := exec.Command("sh", "-ec", `ip link add left type veth peer name right; ip link set left up
		ip link set right up; ip addr add 10.46.200.1/24 dev left`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "left").Run() })
	l, err := Absorb("right", netip.MustParsePrefix("10.47.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	right, err := net.InterfaceByName("right")
	if err != nil {
		t.Fatal(err)
	}
	delivered := func() uint64 {
		b, err := os.ReadFile("/proc/net/snmp")
		if err != nil {
			t.Fatal(err)
		}
		f := strings.Fields(strings.SplitN(string(b), "\n", 3)[1]) // the values of "Ip:"
		n, err := strconv.ParseUint(f[3], 10, 64)                  // InReceives
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for to, want := range map[string]uint64{"10.47.1.2:80": 0, "10.48.1.2:80": 64} {
		before := delivered()
		s, err := Open(Config{Device: "right", Arrive: true, From: net.HardwareAddr{2, 0, 0, 0, 0, 1}, To: right.HardwareAddr,
			Sources: netip.MustParsePrefix("10.46.200.9/32"), Services: []netip.AddrPort{netip.MustParseAddrPort(to)}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Send(context.Background(), 64, 0); err != nil {
			t.Error(err)
		}
		if got := delivered() - before; got != want {
			t.Errorf("%d of 64 frames for %s arrived, want %d", got, to, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
