// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// datagram is a datagram between the daemon and the controller.
type datagram struct {
	from, to netip.AddrPort
	payload  []byte
}

// datagrams returns the datagrams between daemon and controller in a capture of lo.
func datagrams(packets []netlab.Packet, server netip.AddrPort) (found []datagram) {
	for _, p := range packets {
		d := p.Decode()
		ip, _ := d.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		udp, _ := d.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if !p.Outgoing || ip == nil || udp == nil {
			continue
		}
		from, _ := netip.AddrFromSlice(ip.SrcIP)
		to, _ := netip.AddrFromSlice(ip.DstIP)
		g := datagram{netip.AddrPortFrom(from, uint16(udp.SrcPort)), netip.AddrPortFrom(to, uint16(udp.DstPort)), udp.Payload}
		if g.from == server || g.to == server {
			found = append(found, g)
		}
	}
	return found
}

// forger sends datagrams with arbitrary source addresses from a namespace.
type forger int

func newForger(t *testing.T, ns *netlab.Namespace) forger {
	t.Helper()
	var fd int
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // with an IP header of our own
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return forger(fd)
}

func (f forger) send(t *testing.T, d datagram) {
	t.Helper()
	b := make([]byte, 28, 28+len(d.payload))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP // the kernel fills in length and checksum
	from, to := d.from.Addr().As4(), d.to.Addr().As4()
	copy(b[12:], from[:])
	copy(b[16:], to[:])
	binary.BigEndian.PutUint16(b[20:], d.from.Port())
	binary.BigEndian.PutUint16(b[22:], d.to.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(d.payload))) // without a checksum, as RFC 768 allows
	if err := unix.Sendto(int(f), append(b, d.payload...), 0, &unix.SockaddrInet4{Addr: to}); err != nil {
		t.Fatal(err)
	}
}

// damaged returns variants of a datagram, and payloads that never were one.
func damaged(r *rand.Rand, d datagram) []datagram {
	with := func(payload []byte) datagram { return datagram{d.from, d.to, payload} }
	flipped := append([]byte(nil), d.payload...)
	flipped[r.IntN(len(flipped))] ^= 1 << r.IntN(8)
	noise := make([]byte, r.IntN(1400))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	return []datagram{
		d, // replayed, from its own address
		with(d.payload[:r.IntN(len(d.payload))]), with(append(append([]byte(nil), d.payload...), noise...)), with(flipped),
		with(noise), with(nil),
		{netip.AddrPortFrom(d.from.Addr(), 9), d.to, d.payload}, // replayed, from another address
		{d.to, d.from, d.payload},                               // sent back
	}
}

// Garbage and truncated, changed and replayed datagrams are sent to both ends of the wire while services wake and
// sleep.
func TestForgedDatagramsOnlyRaiseCounters(t *testing.T) {
	const metrics = "127.0.0.1:9464"
	l := newLab(t, 1)
	found, err := l.Node.Capture("lo")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = found.Close() }()
	l.startWith(t, manifest(service{name: "hello"}, slow("slow", 500*time.Millisecond)), "-f", "-", "--metrics-address",
		metrics)
	daemon := l.processes(daemonProcess...)
	if len(daemon) != 1 {
		t.Fatalf("daemons: %+v", daemon)
	}
	match := regexp.MustCompile(`--server (\S+)`).FindStringSubmatch(daemon[0].command)
	if match == nil {
		t.Fatalf("no address in %q", daemon[0].command)
	}
	server := netip.MustParseAddrPort(match[1])
	e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
	l.until(t, "hello", "warm", isState("Warm"))
	l.sleep(t, "hello")
	packets, err := found.Close() // before the forged ones
	if err != nil {
		t.Fatal(err)
	}
	all := datagrams(packets, server)
	if len(all) == 0 {
		t.Fatal("nothing of the wire was captured")
	}
	forge := newForger(t, l.Node)
	r := rand.New(rand.NewPCG(1, 2)) // a fixed seed
	for i := range 5 {
		answered := e2e.AskLater(l.Client(), l.address(t, "slow"))
		for done := false; !done; {
			for range 50 {
				for _, d := range damaged(r, all[r.IntN(len(all))]) {
					forge.send(t, d)
				}
			}
			select {
			case err := <-answered:
				if done = true; err != nil {
					t.Errorf("wake %d: %v", i, err)
				}
			case <-time.After(time.Millisecond):
			}
		}
		e2e.MustAsk(t, l.Client(), l.address(t, "hello"))
		for _, name := range []string{"slow", "hello"} {
			l.until(t, name, "warm", isState("Warm"))
			l.sleep(t, name)
		}
	}
	for name, want := range map[string]int{"slow": 5, "hello": 6} {
		if n := len(l.wakes(t, name)); n != want {
			t.Errorf("service %s: %d wakes, want %d", name, n, want)
		}
	}
	text, err := e2e.Get(l.Node, metrics, "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"noise", "replay", "seal"} {
		if m := regexp.MustCompile(fmt.Sprintf(`(?m)^wangell_wire_dropped_datagrams_total\{reason="%s"\} (\S+)$`,
			reason)).FindSubmatch(text); m == nil || string(m[1]) == "0" {
			t.Errorf("no datagram was counted as %s: %s", reason, grep(string(text), "wire_dropped"))
		}
	}
}

// grep returns the lines of a text that contain a part.
func grep(text, part string) string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "")
}
