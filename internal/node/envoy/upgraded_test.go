// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/net/websocket"
)

// seenFrom is a pod, or stands for the gate at a service address, that notes from which ports Envoy connects.
func seenFrom(t *testing.T) (pod *httpPod, requests, sockets chan uint16) {
	t.Helper()
	requests, sockets = make(chan uint16, 100), make(chan uint16, 100)
	echo := websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) })
	pod = newHTTPPod(t, func(w http.ResponseWriter, r *http.Request) {
		port := netip.MustParseAddrPort(r.RemoteAddr).Port()
		if r.Header.Get("Upgrade") == "" {
			requests <- port
			return
		}
		sockets <- port
		echo.ServeHTTP(w, r)
	})
	return pod, requests, sockets
}

// openSocket opens a WebSocket, and has a message repeated.
func openSocket(t *testing.T, at netip.AddrPort) *websocket.Conn {
	t.Helper()
	c, err := websocket.Dial(fmt.Sprintf("ws://%s/", at), "", fmt.Sprintf("http://%s/", at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	var got string
	if err := websocket.Message.Send(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := websocket.Message.Receive(c, &got); err != nil || got != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	return c
}

// The gate gives upgraded connections their pods, and their ports tell the pod's node that they are no requests.
func TestUpgradedConnectionsAreNoRequests(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod, requests, none := seenFrom(t)
	address, woken, sockets := seenFrom(t)
	s := shop(t, pod.at)
	s.Addr = address.at
	r.set(s)
	get(t, client(t, false), s.at())
	if port := <-requests; !CarriesRequest(port) {
		t.Errorf("a request comes from port %d, like an upgraded connection", port)
	}
	openSocket(t, s.at())
	if port := <-sockets; CarriesRequest(port) {
		t.Errorf("an upgraded connection comes from port %d, like a request", port)
	}
	if len(woken)+len(none) > 0 {
		t.Errorf("%d requests went to the service address, and %d upgraded connections to the pod", len(woken), len(none))
	}
	r.set(shopAsleep(s))
	for begin := time.Now(); len(woken) == 0 && time.Since(begin) < time.Minute; time.Sleep(10 * time.Millisecond) {
		get(t, client(t, false), s.at())
	}
	if port := <-woken; !CarriesRequest(port) {
		t.Errorf("a request that waits for a pod comes from port %d, like an upgraded connection", port)
	}
}

// shopAsleep is the service without its pods.
func shopAsleep(s Service) Service {
	s.Pods = nil
	return s
}

// A limit of requests for each pod counts upgraded ones, so they go to the pods that Envoy has chosen.
func TestUpgradedConnectionsOfPodsWithALimitGoToThePod(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod, _, sockets := seenFrom(t)
	s := shop(t, pod.at)
	s.MaxPerPod = 2
	r.set(s)
	get(t, client(t, false), s.at())
	openSocket(t, s.at())
	if port := <-sockets; !CarriesRequest(port) {
		t.Errorf("it comes from port %d, like a connection that does not count", port)
	}
}

// A WebSocket over HTTP/2 (RFC 8441) has a connection of its own as well.
func TestTunnelsOverHTTP2AreNoRequests(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod, _, _ := seenFrom(t)
	address, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer address.Close()
	served := make(chan error, 1)
	go func() { served <- serveTunnel(t, address) }()
	s := shop(t, pod.at)
	s.Addr = address.Addr().(*net.TCPAddr).AddrPort()
	r.set(s)
	get(t, client(t, false), s.at())
	c, err := net.Dial("tcp4", s.at().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(c, c)
	if err := openTunnel(c, f, s.at().String()); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("%v; the pod: %v", err, <-served)
		}
		if data, ok := frame.(*http2.DataFrame); ok && string(data.Data()) == "hello" {
			break
		}
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// openTunnel asks for a WebSocket over HTTP/2, without waiting for the settings of the server.
func openTunnel(c io.Writer, f *http2.Framer, host string) error {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	if err := f.WriteSettings(); err != nil {
		return err
	}
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, BlockFragment: headers(
		":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":path", "/", ":authority", host,
	)})
}

// serveTunnel accepts a connection of HTTP/2 with a tunnel, sends a message through it, and checks its port.
func serveTunnel(t *testing.T, l net.Listener) error {
	c, err := l.Accept()
	if err != nil {
		return err
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return err
	}
	f := http2.NewFramer(c, c)
	// SETTINGS_ENABLE_CONNECT_PROTOCOL
	if err := f.WriteSettings(http2.Setting{ID: 8, Val: 1}); err != nil {
		return err
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		h, ok := frame.(*http2.HeadersFrame)
		if !ok {
			continue
		}
		if port := c.RemoteAddr().(*net.TCPAddr).AddrPort().Port(); CarriesRequest(port) {
			return fmt.Errorf("a tunnel comes from port %d, like a request", port)
		}
		err = f.WriteHeaders(http2.HeadersFrameParam{
			StreamID: h.StreamID, EndHeaders: true, BlockFragment: headers(":status", "200"),
		})
		if err != nil {
			return err
		}
		return f.WriteData(h.StreamID, false, []byte("hello"))
	}
}

// headers encodes pairs of names and values for HTTP/2.
func headers(pairs ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for i := 0; i < len(pairs); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]}) // a buffer takes all
	}
	return b.Bytes()
}
