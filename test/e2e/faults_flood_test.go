// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// flood sends SYNs to a service until stop, as Ethernet frames with random source addresses and ports.
type flood struct {
	fd      int
	frame   []byte        // all but source and sequence number is filled in
	pause   time.Duration // between two SYNs
	sent    atomic.Int64
	quit    chan struct{}
	stopped chan struct{}
}

// mac returns the hardware address and the index of a host's device.
func mac(t *testing.T, host *netlab.Namespace) (net.HardwareAddr, int) {
	t.Helper()
	var link netlink.Link
	err := host.Do(func() (err error) {
		link, err = netlink.LinkByName(netlab.Device)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().HardwareAddr, link.Attrs().Index
}

// flood starts a flood of a service, with a pause after each SYN.
func (l *lab) flood(t *testing.T, from *netlab.Namespace, to netip.AddrPort, pause time.Duration) *flood {
	t.Helper()
	source, index := mac(t, from)
	target, _ := mac(t, l.Node)
	f := &flood{frame: make([]byte, 54), pause: pause, quit: make(chan struct{}), stopped: make(chan struct{})}
	err := from.Do(func() (err error) {
		if f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(f.fd, &unix.SockaddrLinklayer{Ifindex: index})
	})
	if err != nil {
		t.Fatal(err)
	}
	copy(f.frame[0:], target)
	copy(f.frame[6:], source)
	ip, tcp := f.frame[14:34], f.frame[34:]
	binary.BigEndian.PutUint16(f.frame[12:], unix.ETH_P_IP)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], 40)
	address := to.Addr().As4()
	copy(ip[16:], address[:])
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	tcp[12], tcp[13] = 5<<4, 0x02 // 20 bytes, SYN
	binary.BigEndian.PutUint16(tcp[14:], 64240)
	go f.run()
	t.Cleanup(f.stop)
	return f
}

func (f *flood) run() {
	defer close(f.stopped)
	r := rand.New(rand.NewPCG(3, 4))
	for {
		select {
		case <-f.quit:
			return
		case <-time.After(f.pause):
		}
		if unix.Send(f.fd, f.next(r), 0) == nil {
			f.sent.Add(1)
		}
	}
}

// next returns a SYN of another client in 198.18.0.0/15 (RFC 2544), with correct checksums.
func (f *flood) next(r *rand.Rand) []byte {
	ip, tcp := f.frame[14:34], f.frame[34:]
	binary.BigEndian.PutUint32(ip[12:], 198<<24|18<<16|r.Uint32()&0x1ffff)
	binary.BigEndian.PutUint16(tcp[0:], uint16(1024+r.IntN(60000)))
	binary.BigEndian.PutUint32(tcp[4:], r.Uint32())
	clear(ip[10:12])
	clear(tcp[16:18])
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip))
	binary.BigEndian.PutUint16(tcp[16:], ^sum(sum(unix.IPPROTO_TCP+20, ip[12:20]), tcp))
	return f.frame
}

// sum adds words in ones' complement (RFC 1071).
func sum(start uint16, b []byte) uint16 {
	n := uint32(start)
	for i := 0; i < len(b); i += 2 {
		n += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return uint16(n)
}

// await waits until more SYNs were sent.
func (f *flood) await(t *testing.T, more int64) {
	t.Helper()
	enough := f.sent.Load() + more
	eventually(t, fmt.Sprintf("%d SYNs", more), func() bool { return f.sent.Load() >= enough })
}

// stop ends the flood. It may be called twice.
func (f *flood) stop() {
	select {
	case <-f.quit:
	default:
		close(f.quit)
		<-f.stopped
		unix.Close(f.fd)
	}
}

// entries returns the number of entries of a map of the gate.
func (l *lab) entries(t *testing.T, name string) int {
	t.Helper()
	var path string
	err := filepath.WalkDir(l.run, func(p string, d os.DirEntry, err error) error {
		if err == nil && d.Name() == name {
			path = p
		}
		return nil
	})
	if err != nil || path == "" {
		t.Fatalf("no map %s below %s: %v", name, l.run, err)
	}
	m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	n := 0
	for all := m.Iterate(); all.Next(&key, &value); n++ {
	}
	return n
}

// A cold and then warm service is flooded. Memory stays bounded, other services on the same gate keep working, cold and
// warm, and the flooded one works afterwards.
func TestSYNFloodHarmsNoOtherService(t *testing.T) {
	const syns, maxParked = 100_000, 1024
	l := newLab(t, 2)
	flooded := slow("flooded", 2*time.Second) // long enough for a flood during the wake
	u := l.start(t, flooded, service{name: "warm"}, service{name: "cold"})
	target, warm, cold := netip.MustParseAddrPort(l.address(t, "flooded")), l.address(t, "warm"), l.address(t, "cold")
	e2e.MustAsk(t, l.Client(), warm)
	daemon := l.processes(daemonProcess...)
	if len(daemon) != 1 {
		t.Fatalf("daemons: %+v", daemon)
	}
	begin := e2e.Resident(t, daemon[0].pid)
	others := func() {
		t.Helper()
		for range 20 {
			e2e.MustAsk(t, l.Client(), warm)
		}
		e2e.MustAsk(t, l.Client(), cold)
		l.until(t, "cold", "warm", isState("Warm"))
		l.sleep(t, "cold")
	}
	check := func(what string) {
		t.Helper()
		parked, flows, resident := l.entries(t, "parked_syns"), l.entries(t, "flows"), e2e.Resident(t, daemon[0].pid)
		t.Logf("%s: %d SYNs parked, %d flows, daemon %d MiB", what, parked, flows, resident>>20)
		// Half-open and closed flows have their own limits: 4096 of each for a service.
		if parked > maxParked || flows > 3*4096 || resident-begin > 16<<20 {
			t.Errorf("%s: the limits are exceeded", what)
		}
	}

	f := l.flood(t, l.Clients[1], target, 0)
	l.until(t, "flooded", "waking", isState("Waking"))
	others()
	check("waking")
	f.await(t, syns)
	others()
	check("flooded while waking")
	l.until(t, "flooded", "warm", isState("Warm"))
	f.await(t, syns)
	others()
	check("flooded while warm")
	answered := e2e.AskLater(l.Client(), target.String())
	f.await(t, syns)
	f.stop()
	if err := <-answered; err != nil {
		t.Errorf("a client that came during the flood: %v", err)
	}
	e2e.MustAsk(t, l.Client(), target.String())
	load := l.load(t, target.String(), newConnections, keptConnections)
	load.GoesOn(t)
	load.Stop(t)
	t.Logf("%d SYNs sent", f.sent.Load())
	l.sleep(t, "flooded")
	e2e.MustAsk(t, l.Client(), target.String())
	if now := l.processes(daemonProcess...); len(now) != 1 || now[0].pid != daemon[0].pid {
		t.Errorf("the daemon was replaced: %+v, before %+v", now, daemon)
	}
	if strings.Contains(u.said(), "panic") {
		t.Error("the log has a panic")
	}
}

// A service with a small limit parks that many SYNs, and their clients are answered. The others repeat their SYN.
func TestParkedSYNsStayWithinTheLimitOfAService(t *testing.T) {
	l := newLab(t, 2)
	s := slow("slow", time.Second)
	s.more = "maxParked: 4\nmaxParkedPerSource: 2"
	l.start(t, s)
	address := l.address(t, "slow")
	answers := crowd(t, l.Clients, 4, address) // clients that are not parked repeat their SYN
	if len(answers) != 8 {
		t.Errorf("%d answers", len(answers))
	}
	eventually(t, "the count of the released", func() bool { return l.wakes(t, "slow")[0].Released > 0 })
	w := l.wakes(t, "slow")
	if len(w) != 1 || w[0].Released > 4 {
		t.Errorf("wakes: %+v, want one with at most 4 SYNs released", w)
	}
	l.until(t, "slow", "all flows counted", func(s status.Status) bool { return s.Traffic.NewFlows == 8 })
}
