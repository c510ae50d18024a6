// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

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
	if got := s.ports.waits("default/a"); got != port || s.ports.waits("default/b") != 0 {
		t.Errorf("a waits for port %d, want %d", got, port)
	}
	if !strings.Contains(log.String(), "another program of this machine has it") {
		t.Errorf("logged %q", log.String())
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	p := <-published
	if got := p.ports[port].String(); len(p.ports) != 1 || got != "10.0.0.2:80" || len(p.services) != 2 {
		t.Errorf("published %+v, want port %d", p, port)
	}
	if got := s.ports.waits("default/a"); got != 0 {
		t.Errorf("a still waits for port %d", got)
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
