// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// BenchmarkOneWay measures the time from Send at a daemon to Receive at the controller over loopback, for single
// messages with pauses between them, like wakes.
func BenchmarkOneWay(b *testing.B) {
	at := make(chan monotime.Time, 1)
	ctl := startController(b, "127.0.0.1:0", func(c *ServerConfig) {
		c.Receive = func(Peer, Message) { at <- monotime.Now() }
	})
	dmn := startDaemon(b, ctl.addr, "node-1", nil)
	ctl.peer(b, "node-1")
	eventually(b, "connected", func() bool { return dmn.connections() == 1 })
	took := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for b.Loop() {
		time.Sleep(time.Millisecond)
		start := monotime.Now()
		if err := dmn.Send(wake(1)); err != nil {
			b.Fatal(err)
		}
		took = append(took, (<-at).Sub(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "median-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
}

// BenchmarkSendWait measures a message, its handler and the acknowledgement over loopback.
func BenchmarkSendWait(b *testing.B) {
	ctl := startController(b, "127.0.0.1:0", nil)
	startDaemon(b, ctl.addr, "node-1", func(c *ClientConfig) { c.Receive = func(Message) {} })
	p := ctl.peer(b, "node-1")
	for b.Loop() {
		if err := ctl.SendWait(b.Context(), p.ID, wake(1)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSync measures sending a whole table of 10,000 services over loopback.
func BenchmarkSync(b *testing.B) {
	services := manyServices(10_000)
	for b.Loop() {
		b.StopTimer()
		ctl := startController(b, "127.0.0.1:0", func(c *ServerConfig) { c.Log = nil })
		dmn := startDaemon(b, ctl.addr, "node-1", func(c *ClientConfig) { c.Log = nil })
		ctl.peer(b, "node-1")
		b.StartTimer()
		if err := ctl.SetServices(services); err != nil {
			b.Fatal(err)
		}
		eventually(b, "the table", func() bool { _, _, _, _, n := dmn.state(); return n == len(services) })
		b.StopTimer()
		dmn.Close()
		ctl.Close()
		b.StartTimer()
	}
}

// BenchmarkStranger measures the cost of a HELLO that fails authentication, by the node that it names.
func BenchmarkStranger(b *testing.B) {
	v := readVectors(b)
	good := unhex(b, v.Hello.Datagram)
	for _, known := range []bool{false, true} {
		b.Run(map[bool]string{false: "unknown node", true: "known node"}[known], func(b *testing.B) {
			s := &Server{cfg: ServerConfig{Key: testKey}, hellos: newHelloKeys(testKey)}
			d := bytes.Clone(good)
			node, err := helloNode(d)
			if err != nil {
				b.Fatal(err)
			}
			if known {
				s.hellos.keep(node, newHelloKey(testKey, node))
			}
			d[len(d)-1] ^= 1
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.receive(d, service4); err == nil {
					b.Fatal("opened")
				}
			}
		})
	}
}
