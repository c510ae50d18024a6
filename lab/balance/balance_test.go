// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/lab/proxy"
)

func TestBusiestIsTheLargestOverTheMean(t *testing.T) {
	for _, c := range []struct {
		counts map[string]int
		want   float64
	}{
		{map[string]int{"a": 10, "b": 10}, 1},
		{map[string]int{"a": 10, "b": 0, "c": 0, "d": 0, "e": 0}, 5},
		{map[string]int{"a": 3, "b": 1}, 1.5},
		{map[string]int{"a": 0}, 1},
		{nil, 1},
	} {
		if got := busiest(c.counts); got != c.want {
			t.Errorf("%v: %v, want %v", c.counts, got, c.want)
		}
	}
}

// TestPatternsUseConnectionsAsTheyClaim uses a server that answers each connection as the next of 5 pods.
func TestPatternsUseConnectionsAsTheyClaim(t *testing.T) {
	pods := []string{"p0", "p1", "p2", "p3", "p4"}
	var next, asked atomic.Int64
	type podKey struct{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Served-By", r.Context().Value(podKey{}).(string))
	}))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, podKey{}, pods[next.Add(1)%5])
	}
	server.Start()
	defer server.Close()
	site := endpoint{dial: (&net.Dialer{}).DialContext, address: server.Listener.Addr().String(), pods: pods}
	for _, p := range Patterns {
		threads := p.Clients * p.Threads
		var s Sample
		var requests, connections int
		// On a busy machine, a short time may not be enough for every thread to ask.
		for _, length := range []time.Duration{300 * time.Millisecond, 3 * time.Second, 10 * time.Second} {
			asked.Store(0)
			s = runPattern(t.Context(), p, site, length)
			requests, connections = 0, 0
			for _, pod := range pods {
				requests, connections = requests+s.Requests[pod], connections+s.Connections[pod]
			}
			if s.Failed > 0 || len(s.Requests) == 5 && (!p.OwnConnection || connections >= threads) {
				break
			}
		}
		if s.Failed > 0 || requests == 0 || int64(requests) != asked.Load() || len(s.Requests) != 5 || s.perSecond() <= 0 {
			t.Errorf("%s: %+v; the server was asked %d times", p.Key, s, asked.Load())
		}
		switch {
		case p.NewConnection && connections != requests:
			t.Errorf("%s: %d connections for %d requests", p.Key, connections, requests)
		case p.OwnConnection && (connections < threads || connections > 2*threads):
			t.Errorf("%s: %d connections of %d threads", p.Key, connections, threads)
		// net/http replaces a connection whose last request took longer than 50 ms to write: on a busy machine, some.
		case !p.NewConnection && connections > 2*threads:
			t.Errorf("%s: %d connections of %d threads", p.Key, connections, threads)
		}
	}
}

func TestPatternCountsFailures(t *testing.T) {
	refuse := func(context.Context, string, string) (net.Conn, error) {
		time.Sleep(time.Millisecond)
		return nil, fmt.Errorf("refused")
	}
	site := endpoint{dial: refuse, address: "192.0.2.1:80", pods: []string{"a"}}
	s := runPattern(t.Context(), Patterns[0], site, 50*time.Millisecond)
	if s.Failed == 0 || len(s.Errors) == 0 || len(s.Errors) > tallyErrors || s.Requests["a"] != 0 {
		t.Errorf("%+v", s)
	}
}

func TestReportShowsTheBusiestPod(t *testing.T) {
	var samples []Sample
	for i, p := range Patterns {
		for _, mode := range proxy.InTurn(AllModes, i) {
			s := Sample{Mode: mode, Pattern: p.Key, Seconds: 2, Connections: map[string]int{"a": 1},
				Requests: map[string]int{"a": 100, "b": 100, "c": 100, "d": 100, "e": 100}}
			if mode == proxy.ModeNftables {
				s.Requests["a"] += 500
			}
			s.P50, s.P99 = 1, 2
			if mode == proxy.ModeRequest {
				s.P50, s.P99, s.Envoy = 1.5, 4, &EnvoyUse{CPU: 0.05, Memory: float64(10 + i)}
			}
			if mode == proxy.ModeKnative {
				s.Seconds, s.Envoy = 4, &EnvoyUse{CPU: 0.1, Memory: 7}
			}
			samples = append(samples, s)
			if slices.Contains(workPatterns, p.Key) && slices.Contains(workModes, mode) {
				s.Work = 2
				if mode == proxy.ModeRequest {
					s.Seconds = 2.5
				}
				samples = append(samples, s)
			}
		}
	}
	r := newReport(samples, false)
	for key, want := range map[string]float64{"pool_20_busiest_over_mean_nftables": 3,
		"pool_20_busiest_over_mean_wangell": 1, "one_connection_req_per_s_wangell": 250,
		"one_connection_request_over_connection": 1, "work_one_connection_request_over_connection": 0.8,
		"work_pool_20_req_per_s_wangell_request": 200, "pool_5_added_p50_ms": 0.5, "pool_5_added_p99_ms": 2,
		"envoy_cores_per_1000_req_per_s": 0.1, "envoy_memory_mib": 15,
		"knative_envoy_cores_per_1000_req_per_s": 0.2, "knative_work_envoy_memory_mib": 7,
		"pool_5_request_over_knative": 2} {
		if got := r.Summary.Get(key); got != want {
			t.Errorf("%s = %v, want %v", key, got, want)
		}
	}
	if err := r.Write(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestParamsAreChecked(t *testing.T) {
	for _, bad := range []Params{{}, {Cluster: "x", Modes: []string{"direct"}}, {Cluster: "x", Time: -1},
		{Cluster: "x", Rounds: -1}, {Cluster: "x", Patterns: []string{"work_two_connections"}}, {Cluster: "x", Machine: true},
		{Machine: true, Modes: []string{proxy.ModeKnative}}, {Cluster: "x", Envoy: "/usr/bin/envoy"}} {
		if err := bad.Check(nil); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestPatternsAreSelectedByKey(t *testing.T) {
	for _, c := range []struct{ keys, idle, working string }{
		{"", "one_connection five_connections new_connection pool_5 pool_20 seven_clients",
			"one_connection five_connections pool_20"},
		{"work_pool_5 pool_20", "pool_20", "pool_5"},
		{"work_one_connection", "", "one_connection"},
	} {
		p := Params{Patterns: strings.Fields(c.keys)}.withDefaults()
		keys := func(prefix string) string {
			var out []string
			for _, of := range p.selected(prefix) {
				out = append(out, of.Key)
			}
			return strings.Join(out, " ")
		}
		if idle, working := keys(""), keys(workPrefix); idle != c.idle || working != c.working {
			t.Errorf("%q: %q and with work %q", c.keys, idle, working)
		}
	}
}

func TestRoundsAreOneSample(t *testing.T) {
	round := func(mode string, n int, p50 float64, envoy *EnvoyUse) Sample {
		return Sample{Mode: mode, Pattern: "pool_5", Seconds: 2, Requests: map[string]int{"a": n, "b": 0}, P50: p50,
			Envoy: envoy}
	}
	other := round(proxy.ModeWangell, 0, 2, nil)
	other.Requests["b"] = 140 // another pod is the busiest
	r := newReport([]Sample{
		round(proxy.ModeWangell, 100, 1, nil), round(proxy.ModeRequest, 50, 4, &EnvoyUse{CPU: 0.1, Memory: 5}),
		round(proxy.ModeRequest, 70, 3, &EnvoyUse{CPU: 0.2, Memory: 4}), other,
		round(proxy.ModeWangell, 120, 3, nil), round(proxy.ModeRequest, 60, 5, &EnvoyUse{CPU: 0.06, Memory: 4}),
	}, false)
	for key, want := range map[string]float64{"pool_5_req_per_s_wangell": 60,
		"pool_5_busiest_over_mean_wangell": 2, "pool_5_request_over_connection": 0.5,
		"pool_5_added_p50_ms": 2, "envoy_cores_per_1000_req_per_s": 2, "envoy_memory_mib": 5} {
		if got := r.Summary.Get(key); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s = %v, want %v", key, got, want)
		}
	}
	// A round in which the machine was slow counts once.
	slow := []Sample{
		round(proxy.ModeWangell, 100, 1, nil), round(proxy.ModeRequest, 90, 1, nil),
		round(proxy.ModeWangell, 100, 1, nil), round(proxy.ModeRequest, 20, 1, nil),
		round(proxy.ModeWangell, 40, 1, nil), round(proxy.ModeRequest, 34, 1, nil),
	}
	if got := newReport(slow, true).Summary.Get("pool_5_request_over_connection"); math.Abs(got-0.85) > 1e-9 {
		t.Errorf("the median of the rounds is %v", got)
	}
	if raw, ok := r.Raw.([]Sample); !ok || len(raw) != 6 {
		t.Errorf("raw samples: %v", r.Raw)
	}
}
