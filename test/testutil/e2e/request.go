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

	"wangell.loutres.me/test/testutil/netlab"
)

// Answer is the answer of the tests' own server (test/e2e/server).
type Answer struct {
	// Client is the address and port of the client, as the server sees them.
	Client string
	// Instance identifies the server's process.
	Instance string
	// Version is the server's environment variable VERSION.
	Version string
}

// ClientAddr returns the address of the client without its port.
func (a Answer) ClientAddr() netip.Addr {
	ap, _ := netip.ParseAddrPort(a.Client)
	return ap.Addr().Unmap()
}

// HTTPClient returns an HTTP client in a network namespace. Without keep-alive each request uses a new connection.
func HTTPClient(from *netlab.Namespace, keepAlive bool) *http.Client {
	return &http.Client{Timeout: Patience, Transport: &http.Transport{
		DialContext: from.Dialer().DialContext, DisableKeepAlives: !keepAlive, Proxy: nil,
	}}
}

// Get returns the body of the answer to a request on a new connection. A status other than 200 is an error.
func Get(from *netlab.Namespace, address, path string) ([]byte, error) {
	return Fetch(HTTPClient(from, false), address, path)
}

// Fetch is Get with a given client.
func Fetch(c *http.Client, address, path string) ([]byte, error) {
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

// Status returns the status code of the answer to a GET request.
func Status(t testing.TB, c *http.Client, url string) int {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// Ask sends a request to the tests' own server on a new connection.
func Ask(from *netlab.Namespace, address string) (Answer, error) {
	return AskBy(HTTPClient(from, false), address)
}

// AskBy is Ask with a given client.
func AskBy(c *http.Client, address string) (Answer, error) {
	return ParseAnswer(Fetch(c, address, "/"))
}

// ParseAnswer decodes the body of an answer of the tests' own server.
func ParseAnswer(body []byte, err error) (a Answer, _ error) {
	if err == nil {
		if err = json.Unmarshal(body, &a); err != nil {
			err = fmt.Errorf("answer %q: %w", body, err)
		}
	}
	return a, err
}

// MustAsk is Ask for a request that must succeed.
func MustAsk(t testing.TB, from *netlab.Namespace, address string) Answer {
	t.Helper()
	a, err := Ask(from, address)
	if err != nil {
		t.Fatalf("from %s: %v", from.Name, err)
	}
	return a
}

// AskLater sends a request in the background and delivers its error.
func AskLater(from *netlab.Namespace, address string) <-chan error {
	answered := make(chan error, 1)
	go func() {
		_, err := Ask(from, address)
		answered <- err
	}()
	return answered
}

// Dial connects to an address. All reads and writes must be done within Patience.
func Dial(d *netlab.Dialer, address string) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), c.SetDeadline(time.Now().Add(Patience))
}

// MustDial is Dial from a namespace for a connection that must succeed. The connection is closed at the end of the
// test.
func MustDial(t testing.TB, from *netlab.Namespace, address string) *net.TCPConn {
	t.Helper()
	c, err := Dial(from.Dialer(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
