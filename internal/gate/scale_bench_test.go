// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// Sizes of a large cluster.
const (
	manyServices   = 10_000
	podsOfAService = 2
	manyFlows      = 2_000_000
)

// numberedService returns the address of service number i.
func numberedService(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 46, 100, byte(i % 250)}), uint16(1+i/250))
}

// BenchmarkLargeCluster measures what the daemon does with the gate on a node of a large cluster: 10,000 services with
// 20,000 pods on other nodes, and 2,000,000 flows.
func BenchmarkLargeCluster(b *testing.B) {
	w := newRemoteWorld(b, func(c *Config) {
		c.Sizes = Sizes{Pods: 4 * manyServices * podsOfAService, Flows: manyFlows + 1000}
	})
	node := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 47, byte(i >> 8), byte(i)}) }
	pod := func(service, i int) Pod {
		return Pod{ID: uint64(i + 1), Service: numberedService(service), Node: node(1 + (service+i)%1000),
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 48, byte(service >> 8), byte(service)}), 8080)}
	}
	for s := range manyServices {
		_, err := w.g.SetService(Service{Addr: numberedService(s), MaxParked: 100, MaxParkedPerSource: 100})
		w.must(err)
		for i := range podsOfAService {
			w.must(w.g.AddPod(pod(s, i)))
		}
	}
	b.Run("pod added and removed", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			p := pod(n%manyServices, podsOfAService)
			w.must(w.g.AddPod(p))
			w.must(w.g.RemovePod(p.Service, p.ID))
		}
	})
	b.Run("pods of all services", func(b *testing.B) {
		for b.Loop() {
			for _, s := range w.g.Services() {
				if n := len(w.g.PodIDs(s)); n != podsOfAService {
					b.Fatalf("%d pods of %v", n, s)
				}
			}
		}
	})
	b.Run("sweep, no flows", func(b *testing.B) {
		for b.Loop() {
			_, err := w.g.Sweep(DefaultAges())
			w.must(err)
		}
	})
	index, _ := w.g.podTable.index(numberedService(0), 1)
	w.fillFlowsWith(manyFlows, gateFlow{State: estab, Pod: index, Generation: w.g.pods.at(index).Generation,
		Last: uint64(monotime.Now())})
	b.Run("sweep, 2,000,000 flows", func(b *testing.B) {
		b.ReportAllocs()
		ages := Ages{HalfOpen: time.Hour, Closed: time.Hour, HalfClosed: time.Hour, Established: time.Hour}
		for b.Loop() {
			s, err := w.g.Sweep(ages)
			w.must(err)
			b.ReportMetric(float64(s.Flows), "flows")
		}
	})
}
