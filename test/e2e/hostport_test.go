// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// Clients on another host, which have no route to service addresses, on the machine, on its loopback address and in a
// pod, each of which finds the service cold and warm.
func TestServiceIsPublishedAtAPortOfTheMachine(t *testing.T) {
	l := newLab(t, 1)
	if out, err := l.Client().Command(t.Context(), "ip", "route", "del", "10.46.100.0/24").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// A server of the machine at another port goes on.
	own, err := l.Node.Listen(t.Context(), "tcp", ":8001")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	file := filepath.Join(l.dir, "services.yaml")
	write := func(hostPort string) {
		t.Helper()
		text := manifest(service{name: "hello", more: hostPort}, service{name: "client", more: "hostPort: 8002"})
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("hostPort: 8000")
	l.startWith(t, "", "-f", file)
	machine := netip.AddrPortFrom(l.Node.Addr, 8000).String()
	for _, c := range []struct {
		what, address string
		from          *netlab.Namespace
	}{
		{"outside", machine, l.Client()}, {"on the machine", machine, l.Node}, {"on loopback", "127.0.0.1:8000", l.Node},
	} {
		for _, state := range []string{"cold", "warm"} {
			a, err := e2e.Ask(c.from, c.address)
			if err != nil {
				t.Fatalf("client %s, %s: %v", c.what, state, err)
			}
			if c.what != "on loopback" && a.ClientAddr() != c.from.Addr {
				t.Errorf("client %s: the service sees %s, want %s", c.what, a.Client, c.from.Addr)
			}
		}
		l.sleep(t, "hello")
	}
	client := netip.AddrPortFrom(l.Node.Addr, 8002).String()
	a, err := e2e.ParseAnswer(e2e.Get(l.Client(), client, "/proxy?target="+machine))
	if err != nil || a.Instance == "" {
		t.Errorf("client in a pod: %+v, %v", a, err)
	}

	// A port in use is taken once it is free; a change of the port starts no pod.
	pod := l.service(t, "hello").Pods[0].ID
	write("hostPort: 8001")
	eventually(t, "the message", func() bool {
		return strings.Contains(l.must(t, "ps"), "hostPort 8001: another program of this machine has it")
	})
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service at the port that is free", func() bool {
		_, err := e2e.Ask(l.Client(), netip.AddrPortFrom(l.Node.Addr, 8001).String())
		return err == nil
	})
	if out := l.must(t, "ps"); strings.Contains(out, "8001") {
		t.Errorf("ps still has the message: %s", out)
	}
	write("hostPort: 8003")
	eventually(t, "the service at its new port", func() bool {
		_, err := e2e.Ask(l.Client(), netip.AddrPortFrom(l.Node.Addr, 8003).String())
		return err == nil
	})
	if _, err := e2e.Ask(l.Client(), machine); err == nil {
		t.Error("the service is still at its former port")
	}
	if now := l.service(t, "hello").Pods[0].ID; now != pod {
		t.Errorf("the pod is %s, want still %s", now, pod)
	}
	write("")
	eventually(t, "the end of the publication", func() bool {
		_, err := e2e.Ask(l.Client(), netip.AddrPortFrom(l.Node.Addr, 8003).String())
		return err != nil
	})
}

// A port at the loopback address is open to programs on the machine and closed to everybody else: to another host, to a
// pod, and to a neighbor that sends packets to 127.0.0.1. A port at another address is open there alone.
func TestServiceIsPublishedAtOneAddressOfTheMachine(t *testing.T) {
	l := newLab(t, 1)
	l.start(t, service{name: "private", more: "hostPort: 8000\nhostAddress: 127.0.0.1"},
		service{name: "open", more: "hostPort: 8001\nhostAddress: " + l.Node.Addr.String()},
		service{name: "client", more: "hostPort: 8002"})
	machine := func(port uint16) string { return netip.AddrPortFrom(l.Node.Addr, port).String() }
	type client struct {
		from *netlab.Namespace
		to   string
	}
	for _, c := range []struct {
		service string
		open    client
		closed  []client
	}{
		{"private", client{l.Node, "127.0.0.1:8000"},
			[]client{{l.Client(), machine(8000)}, {l.Node, machine(8000)}, {l.Node, "127.0.0.2:8000"}}},
		{"open", client{l.Client(), machine(8001)}, []client{{l.Node, "127.0.0.1:8001"}}},
	} {
		for _, state := range []string{"cold", "warm"} {
			for _, closed := range c.closed {
				if a, err := e2e.Ask(closed.from, closed.to); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("%s, %s, from %s at %s: %+v, %v, want a refusal as of a closed port", c.service, state,
						closed.from.Name, closed.to, a, err)
				}
			}
			if _, err := e2e.Ask(c.open.from, c.open.to); err != nil {
				t.Errorf("%s, %s, at %s: %v", c.service, state, c.open.to, err)
			}
		}
		l.sleep(t, c.service)
	}
	if a, err := e2e.ParseAnswer(e2e.Get(l.Client(), machine(8002), "/proxy?target="+machine(8000))); err == nil {
		t.Errorf("a pod reaches the port of the loopback address: %+v", a)
	}
	// The neighbor takes 127.0.0.1 for an address of the machine.
	script := "ip address del 127.0.0.1/8 dev lo && ip route add 127.0.0.1/32 via " + l.Node.Addr.String() +
		" && for f in /proc/sys/net/ipv4/conf/*/route_localnet; do echo 1 >$f; done"
	if out, err := l.Client().Command(t.Context(), "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := len(l.wakes(t, "private"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if c, err := l.Client().Dialer().DialContext(ctx, "tcp", "127.0.0.1:8000"); err == nil {
		c.Close()
		t.Error("a neighbor reaches the port of the loopback address")
	}
	if after := len(l.wakes(t, "private")); after != before {
		t.Error("a neighbor wakes the service of the loopback address")
	}
}

func TestPublishedPortsThatCannotBeAreRefused(t *testing.T) {
	l := newLab(t, 1)
	for name, c := range map[string]struct {
		flags []string
		text  string
		want  string
	}{
		"twice": {nil, manifest(service{name: "a", more: "hostPort: 8000"}, service{name: "b", more: "hostPort: 8000"}),
			"service default/b: spec.hostPort 8000 is already that of service default/a: choose another"},
		"without a way": {[]string{"--egress=false"}, manifest(service{name: "a", more: "hostPort: 8000"}), "--egress"},
	} {
		u, err := l.launch(c.text, append([]string{"-f", "-"}, c.flags...)...)
		if err != nil {
			t.Fatal(err)
		}
		u.awaitEnd(t)
		if u.err == nil || !strings.Contains(u.said(), c.want) {
			t.Errorf("%s: %v: %s, want %q", name, u.err, u.said(), c.want)
		}
	}
}
