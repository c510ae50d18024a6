// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a client in a network namespace sends to a program there is noticed once, until it is drained.
func TestLoopbackTellsWhatAsksAProgram(t *testing.T) {
	for _, c := range []struct{ name, network, at string }{{"IPv4", "tcp4", "127.0.0.1:0"}, {"IPv6", "tcp6", "[::1]:0"}} {
		t.Run(c.name, func(t *testing.T) { testLoopback(t, c.network, c.at) })
	}
}

func testLoopback(t *testing.T, network, at string) {
	const name = "looped"
	namespace(t, name, "wglooped", "true")
	asked := make(chan struct{}, 10)
	l, err := watchLoopback("/run/netns/"+name, func() { asked <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	expect := func(step string) {
		t.Helper()
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Fatalf("%s is not noticed", step)
		}
		if l.drain(); len(asked) > 0 { // the reader waits for the drain
			t.Errorf("%s is noticed twice", step)
		}
	}
	var listener net.Listener
	var client, server net.Conn
	in(t, name, func() (err error) { listener, err = net.Listen(network, at); return err })
	defer listener.Close()
	in(t, name, func() (err error) { client, err = net.Dial(network, listener.Addr().String()); return err })
	defer client.Close()
	expect("a connection")
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	send := func(what string) {
		t.Helper()
		if _, err := client.Write([]byte(what)); err != nil {
			t.Fatal(err)
		}
	}
	send("word")
	expect("data")

	// A keepalive, and its answer, have passed when what comes after them is noticed: only that may be.
	raw, err := client.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var before, after *unix.TCPInfo
	info := func() (i *unix.TCPInfo) {
		_ = raw.Control(func(fd uintptr) { i, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) })
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	before = info()
	if err := client.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: time.Second, Interval: time.Second, Count: 100,
	}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if after = info(); after.Segs_out > before.Segs_out && after.Segs_in > before.Segs_in {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no keepalive")
		}
	}
	if len(asked) > 0 {
		t.Error("a keepalive is noticed")
	}
	client.Close()
	expect("the end")
}
