// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestServersOweWhatTheyHaveNotAnswered(t *testing.T) {
	const recent, unread = time.Second, time.Minute
	listener := talk{state: tcpListen, port: 80}
	for name, c := range map[string]struct {
		all  []talk
		want bool
	}{
		"nothing":                     {nil, false},
		"a server":                    {[]talk{listener}, false},
		"a connection not accepted":   {[]talk{{state: tcpListen, port: 80, queued: 1}}, true},
		"a connection without a word": {[]talk{listener, {state: tcpEstablished, port: 80}}, false},
		"what was not read":           {[]talk{listener, {state: tcpCloseWait, port: 80, queued: 7}}, true},
		"what has long lain unread": {[]talk{listener,
			{state: tcpEstablished, port: 80, queued: 7, receivedAgo: 2 * unread, segmentAgo: 2 * unread}}, false},
		"an end not read": {[]talk{listener,
			{state: tcpCloseWait, port: 80, queued: 1, receivedAgo: 2 * unread, segmentAgo: 10}}, true},
		"a handshake": {[]talk{listener, {state: tcpSynReceived, port: 80}}, true},
		"a question": {[]talk{listener,
			{state: tcpEstablished, port: 80, received: 5, receivedAgo: 10, answeredAgo: 20}}, true},
		"an answer": {[]talk{listener,
			{state: tcpEstablished, port: 80, received: 5, receivedAgo: 20, answeredAgo: 10}}, false},
		"a question long ago": {[]talk{listener,
			{state: tcpEstablished, port: 80, received: 5, receivedAgo: 2 * recent, answeredAgo: 3 * recent}}, false},
		"an answer to the pod": {[]talk{listener,
			{state: tcpEstablished, port: 41000, received: 5, receivedAgo: 10, answeredAgo: 20}}, false},
	} {
		if got := owed(c.all, recent, unread); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// The kernel tells what a server has not accepted, not read and not answered yet.
func TestKernelTellsWhatAServerOwes(t *testing.T) {
	for network, address := range map[string]string{"tcp4": "127.0.0.1:0", "tcp": "[::]:0"} {
		t.Run(network, func(t *testing.T) { testOwes(t, network, address) })
	}
}

func testOwes(t *testing.T, network, address string) {
	diag := localDiag(t)
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	expect := func(step string, want bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			got, err := diag.owesAnswer(time.Hour, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %t, want %t", step, got, want)
			}
		}
	}
	expect("at first", false)
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(l.Addr().(*net.TCPAddr).Port))
	client, err := net.Dial("tcp4", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	expect("a connection waits", true)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	expect("it is accepted", false)
	write := func(c net.Conn) {
		t.Helper()
		if _, err := c.Write([]byte("word")); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(20 * time.Millisecond) // the kernel's times are in milliseconds
	write(client)
	expect("it is asked", true)
	if _, err := io.ReadFull(server, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	expect("it has read", true)
	time.Sleep(20 * time.Millisecond)
	write(server)
	expect("it has answered", false)
}
