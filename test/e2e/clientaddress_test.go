// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/envoytest"
	"wangell.loutres.me/test/testutil/netlab"
)

// keptFrom returns an HTTP client that keeps its connections, which all have a local port.
func keptFrom(t *testing.T, from *netlab.Namespace, port uint16) *http.Client {
	c := e2e.HTTPClient(from, true)
	c.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, to string) (conn net.Conn, err error) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.Addr.AsSlice(), Port: int(port)}}
		d.Control = func(_, _ string, raw syscall.RawConn) (err error) {
			_ = raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
			})
			return err
		}
		err = from.Do(func() (err error) { conn, err = d.DialContext(ctx, network, to); return err })
		return conn, err
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// Envoy runs already, without the right that the second version of the manifest needs. Two clients use the same port.
// Their connections are kept while the service sleeps.
func TestPodsSeeTheAddressesOfClientsBehindEnvoy(t *testing.T) {
	l := newLab(t, 2)
	s := shop(0)
	s.idle = 2
	f := l.files(t)
	f.write(t, "shop.yaml", manifest(s))
	l.startWith(t, "", "-f", f.dir, "--envoy", envoytest.Path(t))
	l.awaitEnvoy(t)
	address := l.address(t, "shop")
	seen := func(c *http.Client) netip.AddrPort {
		a, err := e2e.AskBy(c, address)
		if err != nil {
			t.Fatal(err)
		}
		return netip.MustParseAddrPort(a.Client)
	}
	eventually(t, "Envoy is the front", func() bool {
		return seen(e2e.HTTPClient(l.Client(), false)).Addr() != l.Client().Addr
	})
	s.more = "minReplicas: 0\nbalancing: {level: Request, clientAddress: Transparent}"
	f.write(t, "shop.yaml", manifest(s))
	eventually(t, "Envoy connects from the client's address", func() bool {
		at := seen(e2e.HTTPClient(l.Client(), false))
		return at.Addr() == l.Client().Addr && at.Port() < 10_000
	})
	const port = 40_000
	clients := map[*netlab.Namespace]*http.Client{}
	for _, n := range l.Clients {
		clients[n] = keptFrom(t, n, port)
	}
	all := func(what string) (woke int) {
		for n, c := range clients {
			for range 3 {
				at := seen(c)
				if at.Addr() != n.Addr || at.Port() == port {
					t.Errorf("%s: client %v is seen as %v", what, n.Addr, at)
				}
				if at.Port() < 3072 { // Envoy has connected to the service address
					woke++
				}
			}
		}
		return woke
	}
	all("awake")
	for range 2 {
		l.until(t, "shop", "asleep", func(s status.Status) bool { return len(s.Pods) == 0 })
		if woke := all("woken"); woke == 0 {
			t.Error("no request has woken the service")
		}
	}
	s.more = "minReplicas: 0\nbalancing: {level: Request, clientAddress: Header}"
	f.write(t, "shop.yaml", manifest(s))
	eventually(t, "Envoy has its own address again", func() bool {
		return seen(e2e.HTTPClient(l.Client(), false)).Addr() != l.Client().Addr
	})
}
