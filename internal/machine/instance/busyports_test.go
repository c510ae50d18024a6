// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/syncbuf"
)

func TestServiceGetsItsPortOfTheMachineOnceThatIsFree(t *testing.T) {
	taken, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := netip.MustParseAddrPort(taken.Addr().String()).Port()
	published := make(chan publication, 10)
	var log syncbuf.Buffer
	k := &fakeKeeper{}
	s, err := newServices(k, slog.New(slog.NewTextHandler(&log, nil)), t.TempDir(), netip.MustParsePrefix("10.0.0.0/29"),
		func(p publication) { published <- p })
	if err != nil {
		t.Fatal(err)
	}
	defer s.ports.close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.retryPorts(ctx) }()
	list := wants("a", "b")
	list[0].Spec.HostPort, list[0].Spec.Port = int32(port), 80
	if err := s.apply(t.Context(), list); err != nil || len(k.put) != 2 {
		t.Fatalf("a port that another program has: %v, put %+v", err, k.put)
	}
	if p := <-published; len(p.ports) != 0 || len(p.services) != 2 {
		t.Errorf("published %+v while another program has the port", p)
	}
	if got := s.ports.waits("default/a"); !strings.Contains(got, fmt.Sprint(port)) || s.ports.waits("default/b") != "" {
		t.Errorf("a waits for %q, want port %d", got, port)
	}
	if !strings.Contains(log.String(), "another program of this machine has it") {
		t.Errorf("logged %q", log.String())
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	p := <-published
	got := p.ports[netip.AddrPortFrom(netip.IPv4Unspecified(), port)].String()
	if len(p.ports) != 1 || got != "10.0.0.2:80" || len(p.services) != 2 {
		t.Errorf("published %+v, want port %d", p, port)
	}
	if got := s.ports.waits("default/a"); got != "" {
		t.Errorf("a still waits: %s", got)
	}
	cancel()
	<-ended
	// It is kept away from other programs now, until the service no longer has it.
	if l, err := net.Listen("tcp4", taken.Addr().String()); err == nil {
		l.Close()
		t.Error("the port is free for other programs")
	}
	if err := s.apply(t.Context(), wants("a")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", taken.Addr().String())
	if err != nil {
		t.Fatalf("the port is still kept: %v", err)
	}
	l.Close()
}

// The port of a service is kept and published at the address of the manifest alone, another service and another program
// can have the same port at other addresses, and a change of the address takes effect at once.
func TestServiceIsAtOneAddressOfTheMachine(t *testing.T) {
	free, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	port := netip.MustParseAddrPort(free.Addr().String()).Port()
	free.Close()
	var last publication
	s, err := newServices(&fakeKeeper{}, slog.New(slog.DiscardHandler), t.TempDir(), netip.MustParsePrefix("10.0.0.0/29"),
		func(p publication) { last = p })
	if err != nil {
		t.Fatal(err)
	}
	defer s.ports.close()
	at := func(address string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(address), port) }
	apply := func(addresses ...string) error {
		list := wants("a", "b")[:len(addresses)]
		for i, address := range addresses {
			list[i].Spec.Port, list[i].Spec.HostPort, list[i].Spec.HostAddress = 80, int32(port), address
		}
		return s.apply(t.Context(), list)
	}
	isFree := func(address string) bool {
		l, err := net.Listen("tcp4", at(address).String())
		if err == nil {
			l.Close()
		}
		return err == nil
	}
	if err := apply("127.0.0.1", "127.0.0.2"); err != nil {
		t.Fatal(err)
	}
	want := map[netip.AddrPort]netip.AddrPort{
		at("127.0.0.1"): netip.MustParseAddrPort("10.0.0.2:80"), at("127.0.0.2"): netip.MustParseAddrPort("10.0.0.3:80"),
	}
	if !maps.Equal(last.ports, want) || isFree("127.0.0.1") || isFree("127.0.0.2") || !isFree("127.0.0.3") {
		t.Errorf("published at %v, want %v; free are %t, %t and %t", last.ports, want, isFree("127.0.0.1"),
			isFree("127.0.0.2"), isFree("127.0.0.3"))
	}
	for _, clash := range [][]string{{"127.0.0.1", "127.0.0.1"}, {"", "127.0.0.1"}, {"127.0.0.1", ""}} {
		if err := apply(clash...); err == nil || !strings.Contains(err.Error(), "is already that of service default/a") {
			t.Errorf("services at %q: %v", clash, err)
		}
	}
	// An address that the machine lacks may come.
	if err := apply("192.0.2.1"); err != nil || len(last.ports) != 0 ||
		!strings.Contains(s.ports.waits("default/a"), "hostAddress 192.0.2.1: this machine has no such address") {
		t.Errorf("an address of another machine: %v, published at %v, waits for %q", err, last.ports,
			s.ports.waits("default/a"))
	}
	for _, address := range []string{"127.0.0.1", "", "127.0.0.2"} {
		if err := apply(address); err != nil {
			t.Fatal(err)
		}
		e := at(cmp.Or(address, "0.0.0.0"))
		if len(last.ports) != 1 || !last.ports[e].IsValid() || s.ports.waits("default/a") != "" {
			t.Errorf("moved to %q: published at %v, waits for %q", address, last.ports, s.ports.waits("default/a"))
		}
	}
	if isFree("127.0.0.2") || !isFree("127.0.0.1") {
		t.Error("the port is kept at a former address, or not at the last one")
	}
}

// scarce is a listener that accepts by the results in turn: an error, or nil for a connection.
type scarce struct {
	net.Listener
	results []error
}

func (s *scarce) Accept() (net.Conn, error) {
	if len(s.results) == 0 {
		return nil, net.ErrClosed
	}
	err := s.results[0]
	s.results = s.results[1:]
	if err != nil {
		return nil, err
	}
	c, other := net.Pipe()
	return c, other.Close()
}

// Without a pause, a process without free file descriptors would use a whole core for each port.
func TestPortsWaitWhileNoConnectionCanBeAccepted(t *testing.T) {
	l := &scarce{results: append(slices.Repeat([]error{unix.EMFILE}, 10), nil, unix.ENFILE, nil)}
	var pauses []time.Duration
	refuseAll(l, func(d time.Duration) { pauses = append(pauses, d) })
	if len(pauses) != 11 || !slices.IsSorted(pauses[:10]) || pauses[0] <= 0 || pauses[9] != longestAcceptPause ||
		pauses[10] != firstAcceptPause {
		t.Errorf("pauses %v: want one after each failure, growing, and short again after a connection", pauses)
	}
}
