// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"wangell.loutres.me/test/testutil/freeport"
)

// counts adds up what Envoy reports of one service.
type counts struct {
	mu    sync.Mutex
	all   map[netip.AddrPort]Requests // by pod
	ended map[string]uint64           // requests that have ended, by service
}

// answered returns how many requests of a service have ended.
func (c *counts) answered(service string) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended[service]
}

func (c *counts) add(list []Requests) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all, c.ended = map[netip.AddrPort]Requests{}, map[string]uint64{}
	}
	for _, r := range list {
		sum := c.all[r.Pod]
		sum.Started += r.Started
		for i, n := range r.Answered {
			sum.Answered[i] += n
			c.ended[r.Service] += n
		}
		if r.Open != nil {
			sum.Open = r.Open
		}
		c.all[r.Pod] = sum
	}
}

// await waits until what is counted of pods together is as wanted, and returns it.
func (c *counts) await(t testing.TB, what string, ok func(Requests) bool, pods ...netip.AddrPort) Requests {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		c.mu.Lock()
		sum := Requests{Open: new(uint32)}
		for _, p := range pods {
			r := c.all[p]
			sum.Started += r.Started
			for i, n := range r.Answered {
				sum.Answered[i] += n
			}
			if r.Open != nil {
				*sum.Open += *r.Open
			}
		}
		all := maps.Clone(c.all)
		c.mu.Unlock()
		if ok(sum) {
			return sum
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("%s: %+v, %d open, of %+v", what, sum, *sum.Open, all)
		}
	}
}

func TestRequestsOfEachPodAreCounted(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	first, release := make(chan struct{}), make(chan struct{})
	handle := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			w.WriteHeader(http.StatusNotFound)
		case "/broken":
			w.WriteHeader(http.StatusBadGateway)
		case "/first":
			<-first
		case "/slow":
			<-release
		}
	}
	a, b := newHTTPPod(t, handle), newHTTPPod(t, handle)
	woken := newHTTPPod(t, handle)
	s := shop(t, a.at, b.at)
	s.MaxPerPod, s.Addr = 3, woken.at
	r.set(s)
	get(t, client(t, false), s.at())
	ask := func(path string, times int) {
		t.Helper()
		cl := client(t, false)
		for range times {
			answer, err := cl.Get(fmt.Sprintf("http://%s%s", s.at(), path))
			if err != nil {
				t.Fatal(err)
			}
			answer.Body.Close()
		}
	}
	var clients sync.WaitGroup
	slow := func(path string, times int) {
		for i := range times {
			cl := client(t, i%2 == 0)
			clients.Go(func() {
				answer, err := cl.Get(fmt.Sprintf("http://%s%s", s.at(), path))
				if err != nil {
					t.Error(err)
					return
				}
				answer.Body.Close()
			})
		}
	}
	open := func(from, to uint32) func(r Requests) bool {
		return func(r Requests) bool { return *r.Open >= from && *r.Open <= to }
	}
	// Envoy begins to report the load of a new service after a second.
	slow("/first", 2)
	base := r.counts.await(t, "open requests", open(2, 2), a.at, b.at)
	close(first) // both may be at one pod, by different threads of Envoy, and that pod's turns would be fewer
	clients.Wait()
	r.counts.await(t, "open requests", open(0, 0), a.at, b.at)
	ask("/", 40)
	ask("/missing", 20)
	ask("/broken", 10)
	r.counts.await(t, "requests", func(r Requests) bool {
		return r.Started == base.Started+70 && r.Answered == [Classes]uint64{2: 43, 4: 20, 5: 10}
	}, a.at, b.at)
	for _, p := range []*httpPod{a, b} { // they take turns
		r.counts.await(t, "answers", func(r Requests) bool { return r.Answered[2] > 10 && r.Answered[4] > 5 }, p.at)
	}
	const more = 22
	slow("/slow", more)
	var none netip.AddrPort
	r.counts.await(t, "requests that wait", open(more-12, more-6), none)
	r.counts.await(t, "open requests", open(6, 12), a.at, b.at)
	close(release)
	clients.Wait()
	r.counts.await(t, "requests that wait", open(0, 0), none)
	r.counts.await(t, "open requests", open(0, 0), a.at, b.at)
	s.Pods = nil
	r.set(s)
	ask("/missing", 4)
	r.counts.await(t, "answers of the service address", func(r Requests) bool { return r.Answered[4] == 4 }, woken.at)
	s.Addr = freeport.Reserve(t)
	r.set(s)
	// Envoy takes over the address a little later. It names the last address that it has tried.
	r.counts.await(t, "answers of Envoy", func(r Requests) bool {
		ask("/", 1)
		return r.Answered[5] > 0
	}, s.Addr)
	if log := r.log.String(); log != "" {
		t.Errorf("log: %s", log)
	}
}

func TestReportsWithNonsenseAreIgnored(t *testing.T) {
	gauge := func(cluster string, v float64) *dto.MetricFamily {
		return &dto.MetricFamily{Name: proto.String("cluster." + pendingStat), Metric: []*dto.Metric{{
			Label: []*dto.LabelPair{{Name: proto.String("envoy.cluster_name"), Value: &cluster}}, Gauge: &dto.Gauge{Value: &v},
		}}}
	}
	answers := func(pod, code string, n float64) *dto.MetricFamily {
		return &dto.MetricFamily{Name: proto.String(answersStat), Metric: []*dto.Metric{{
			Label: []*dto.LabelPair{
				{Name: proto.String(serviceTag), Value: proto.String("a/b")},
				{Name: proto.String(podTag), Value: &pod}, {Name: proto.String(codeTag), Value: &code},
			},
			Counter: &dto.Counter{Value: &n},
		}}}
	}
	list := answersOf([]*dto.MetricFamily{
		nil, {}, {Name: proto.String("cluster.other")}, gauge("wangell", 3), gauge("a/b/pods", 3), gauge("a/b/wake", 4),
		answers("10.0.0.1:80", "204", 7), answers("10.0.0.1:80", "204", 0), answers("-", "-", 2), answers("-", "999", 1),
	})
	if len(list) != 4 || list[0].Answered[2] != 7 || list[0].Pod != netip.MustParseAddrPort("10.0.0.1:80") ||
		list[1].Answered[0] != 2 || list[1].Pod.IsValid() || list[2].Answered[0] != 1 ||
		list[3].Service != "a/b" || list[3].Open == nil || *list[3].Open != 7 {
		t.Errorf("%+v", list)
	}
	stats := func(cluster string, at *core.Address) *endpoint.ClusterStats {
		return &endpoint.ClusterStats{ClusterName: cluster, UpstreamLocalityStats: []*endpoint.UpstreamLocalityStats{nil, {
			UpstreamEndpointStats: []*endpoint.UpstreamEndpointStats{{Address: at, TotalIssuedRequests: 5}},
		}}}
	}
	pod := netip.MustParseAddrPort("10.0.0.1:80")
	loads := loadsOf([]*endpoint.ClusterStats{
		nil, stats("wangell", pipe("/x", 0)), stats("a/b/pods", nil), stats("a/b/wake", address(pod)),
		stats("a/b/pods", address(pod)),
	})
	if len(loads) != 1 || loads[0].Service != "a/b" || loads[0].Pod != pod || loads[0].Started != 5 ||
		*loads[0].Open != 0 {
		t.Errorf("%+v", loads)
	}
}
