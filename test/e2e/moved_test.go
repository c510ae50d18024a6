// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// refuses checks that a service address refuses connections.
func refuses(t *testing.T, from *netlab.Namespace, address string) {
	t.Helper()
	c, err := e2e.Dial(from.Dialer(), address)
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting to %s: %v, want a refusal", address, err)
	}
}

// untilServed waits until a service of mode lines has an address.
func (l *lab) untilServed(t *testing.T, address string) {
	t.Helper()
	eventually(t, address+" is served", func() bool {
		k, err := e2e.Converse(l.Client().Dialer(), address)
		return err == nil && k.End() == nil
	})
}

// Clients finish at the address that their service has left, and their requests there are use of the service.
// New ones are refused there and served at the new address, by the same pod. Who is left in the end gets a RST,
// although it only waits.
func TestClientsFinishAtTheAddressThatTheirServiceHasLeft(t *testing.T) {
	l := newLab(t, 1)
	f := l.files(t)
	s := lines("a")
	s.more = "drainTimeout: 3600"
	f.write(t, "a.yaml", manifest(s))
	l.startWith(t, "", "-f", f.dir)
	ip := l.service(t, "a").Service.Status.LoadBalancerIP
	addresses := []string{ip + ":80", ip + ":81", "10.46.100.77:81"}
	var clients []*e2e.Conversation
	come := func(address string) {
		t.Helper()
		for _, from := range []*netlab.Namespace{l.Client(), l.Node} {
			for range 2 {
				clients = append(clients, e2e.MustConverse(t, from, address))
			}
		}
		for _, k := range clients {
			k.MustEcho(t, "still here")
			if k.Greeting.Instance != clients[0].Greeting.Instance {
				t.Error("another pod answers")
			}
		}
		l.until(t, "a", "all connections counted", func(s status.Status) bool {
			return s.Traffic.OpenFlows == uint32(len(clients))
		})
	}
	come(addresses[0])
	for i, change := range []func(){
		func() { s.port = 81 },
		func() { s.more += "\naddress: 10.46.100.77" },
	} {
		change()
		f.write(t, "a.yaml", manifest(s))
		l.untilServed(t, addresses[i+1])
		for _, former := range addresses[:i+1] {
			refuses(t, l.Client(), former)
			refuses(t, l.Node, former)
		}
		come(addresses[i+1])
	}

	// Only the first clients go on, and keep the service awake.
	for _, k := range clients[4:] {
		if err := k.End(); err != nil {
			t.Error(err)
		}
	}
	l.until(t, "a", "the first clients alone", func(s status.Status) bool { return s.Traffic.OpenFlows == 4 })
	began := time.Now()
	clients[0].MustEcho(t, "not idle")
	l.until(t, "a", "a request after all others ended", func(s status.Status) bool {
		return s.Service.Status.LatestRequest.After(began)
	})
	for _, k := range clients[:4] {
		if err := k.End(); err != nil {
			t.Error(err)
		}
	}
	l.untilNoFlows(t, "a")

	waits := e2e.MustConverse(t, l.Client(), addresses[2])
	s.port, s.more = 82, "drainTimeout: 1\naddress: 10.46.100.77"
	f.write(t, "a.yaml", manifest(s))
	l.untilServed(t, "10.46.100.77:82")
	if err := waits.SetReadDeadline(time.Now().Add(e2e.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := waits.Reader.ReadByte(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a client that waits past drainTimeout: %v, want a reset", err)
	}
}
