// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"wangell.loutres.me/internal/testutil/netlab"
)

// answer is what the tests' own server tells.
type answer struct{ Client, Instance, Version string }

// client is the address of the client without its port.
func (a answer) client() netip.Addr {
	ap, _ := netip.ParseAddrPort(a.Client)
	return ap.Addr().Unmap()
}

// httpClient is an HTTP client in a namespace. Without keep-alive each request has a connection of its own.
func httpClient(from *netlab.Namespace, keepAlive bool) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: from.Dialer().DialContext, DisableKeepAlives: !keepAlive, Proxy: nil,
	}}
}

// get makes an HTTP request on a connection of its own and returns the body.
func get(from *netlab.Namespace, address, path string) ([]byte, error) {
	return fetch(httpClient(from, false), address, path)
}

func fetch(c *http.Client, address, path string) ([]byte, error) {
	response, err := c.Get("http://" + address + path)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("answer %s: %s", response.Status, body)
	}
	return body, err
}

// ask asks the tests' own server who is there.
func ask(from *netlab.Namespace, address string) (answer, error) {
	return parse(get(from, address, "/"))
}

func parse(body []byte, err error) (a answer, _ error) {
	if err == nil {
		if err = json.Unmarshal(body, &a); err != nil {
			err = fmt.Errorf("answer %q: %w", body, err)
		}
	}
	return a, err
}

// mustAsk is ask for what must work.
func mustAsk(t *testing.T, from *netlab.Namespace, address string) answer {
	t.Helper()
	a, err := ask(from, address)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// dial connects to address, for as long as a client may have to wait.
func dial(from *netlab.Namespace, address string) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := from.Dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), c.SetDeadline(time.Now().Add(patience))
}

func mustDial(t *testing.T, from *netlab.Namespace, address string) *net.TCPConn {
	t.Helper()
	c, err := dial(from, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// retransmits is how many SYNs a client has sent again.
func retransmits(t *testing.T, client *netlab.Namespace) uint64 {
	t.Helper()
	n, err := client.SYNRetransmits()
	if err != nil {
		t.Fatal(err)
	}
	return n
}
