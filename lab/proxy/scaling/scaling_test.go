// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/scale"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/load"
	"wangell.loutres.me/lab/proxy"
	"wangell.loutres.me/lab/report"
)

func TestRateGroupsPairProxyModesWithOthers(t *testing.T) {
	for _, c := range []struct{ modes, groups string }{
		{"iptables,nftables,wangell", "iptables,wangell,direct nftables,wangell,direct"},
		{"wangell,nftables", "nftables,wangell,direct"}, {"iptables", "iptables,direct"}, {"wangell", "wangell,direct"},
	} {
		var groups []string
		for _, g := range rateGroups(strings.Split(c.modes, ",")) {
			groups = append(groups, strings.Join(g, ","))
		}
		if got := strings.Join(groups, " "); got != c.groups {
			t.Errorf("%s: groups %q, want %q", c.modes, got, c.groups)
		}
	}
}

func TestCPUMeterCountsPodsOfBothLooks(t *testing.T) {
	begin := time.Unix(1000, 0)
	var m cpuMeter
	if _, ok := m.observe(begin, map[string]time.Duration{"a": time.Second}); ok {
		t.Error("the first call returned a use")
	}
	// Over two seconds a uses 1 s and b, on two cores, 3 s. c is new and does not count.
	got, ok := m.observe(begin.Add(time.Second), map[string]time.Duration{"a": time.Second, "b": time.Second})
	if !ok || got != 0 {
		t.Error(got, ok)
	}
	got, ok = m.observe(begin.Add(3*time.Second), map[string]time.Duration{
		"a": 2 * time.Second, "b": 4 * time.Second, "c": 9 * time.Second,
	})
	if !ok || got != 1 {
		t.Errorf("%v cores for each pod, want 1", got)
	}
	if _, ok := m.observe(begin.Add(4*time.Second), map[string]time.Duration{"d": 0}); ok {
		t.Error("a use was returned although no pod is in both calls")
	}
}

func TestCPUPolicyDecidesAtEachInterval(t *testing.T) {
	p := cpuPolicy(0.25, 10*time.Second)
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	var s scale.Scaler
	replicas := 1
	for i, c := range []struct {
		cores float64
		want  int
	}{{math.NaN(), 1}, {0.4, 2}, {0.26, 2}, {0.5, 3}, {0.9, 3}, {0.05, 1}, {0.3, 2}} {
		at := monotime.Time(1 + int64(i)*int64(10*time.Second))
		d := s.Decide(p, scale.Observation{At: at, Replicas: replicas, Value: c.cores})
		if d.Replicas != c.want {
			t.Errorf("decision %d: %v cores for each of %d pods: %s; want %d", i, c.cores, replicas, d, c.want)
		}
		replicas = d.Replicas
	}
}

func TestDefaultsDependOnQuick(t *testing.T) {
	full, quick := Params{}.withDefaults(), Params{Quick: true, Repetitions: 7}.withDefaults()
	if full.Requests != 500_000 || full.Repetitions != 10 || full.Interval != 10*time.Second ||
		full.Clients != cluster.VantagePods {
		t.Errorf("%+v", full)
	}
	if quick.Requests >= full.Requests || quick.Repetitions != 7 {
		t.Errorf("%+v", quick)
	}
}

func TestParamsAreChecked(t *testing.T) {
	for _, bad := range []Params{{}, {Cluster: "x", Modes: []string{"ipvs"}}, {Cluster: "x", Cases: []string{"z"}},
		{Cluster: "x", Parts: []string{"z"}}, {Cluster: "x", Clients: "moon"}, {Cluster: "x", Requests: -1}} {
		if err := bad.Check(nil); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	if err := (&Params{Cluster: "x"}).Check(nil); err != nil {
		t.Error(err)
	}
}

func TestSwingsCountFallsAndRises(t *testing.T) {
	var m AlternatingMode
	for _, wanted := range []int{1, 1, 3, 3, 2, 1, 2, 3, 1} {
		m.Steps = append(m.Steps, Step{Wanted: wanted})
	}
	if falls, rises := m.swings(); falls != 2 || rises != 2 {
		t.Errorf("%d falls and %d rises, want 2 and 2", falls, rises)
	}
}

// invented are samples of all parts; some runs broke off.
func invented() Samples {
	cores := 0.4
	var raw Samples
	for j, mode := range withDirect(AllModes) {
		for i := range 3 {
			r := load.Result{Seconds: float64(i + j + 1), Requests: 100, PerSecond: float64(1000*i + j)}
			for _, clients := range rateClients {
				raw.Rates = append(raw.Rates, RateSample{rateKey{mode, clients, false}, i, r},
					RateSample{rateKey{mode, clients, true}, i, r})
			}
			if mode == proxy.ModeDirect {
				continue
			}
			raw.Fixed = append(raw.Fixed, FixedSample{mode, i, r})
			for _, n := range (Params{Quick: true}).replicaSettings() {
				raw.Replicas = append(raw.Replicas, ReplicaSample{mode, n, i, r})
			}
		}
		if mode == proxy.ModeDirect {
			continue
		}
		m := AlternatingMode{Mode: mode,
			Steps: []Step{{At: 0, Wanted: 1, Ready: 1}, {At: 5, Wanted: 3, Ready: 1, CPU: &cores}, {At: 7, Wanted: 3, Ready: 3}},
			Runs: []AlternatingRun{{At: 0, End: 6, Concurrency: 100, Result: load.Result{Requests: 10}},
				{At: 6, End: 7, Concurrency: 1, Result: load.Result{Failed: 2}}}}
		if mode != proxy.ModeWangell {
			m.Runs = append(m.Runs, AlternatingRun{At: 7, End: 8, Concurrency: 100, Result: load.Result{Aborted: "cut off"}})
		}
		raw.Alternating = append(raw.Alternating, m)
		for _, c := range FlapCases[:3] {
			raw.Flap = append(raw.Flap, FlapSample{Mode: mode, FlapCase: c, Result: load.Result{Requests: 100, Failed: j}})
		}
	}
	// An aborted run does not count for the mean.
	raw.Fixed = append(raw.Fixed, FixedSample{proxy.ModeIptables, 3, load.Result{Aborted: "cut off"}})
	return raw
}

func TestReportsSummarizeAllParts(t *testing.T) {
	raw := invented()
	reports := newReports(planOf(raw, 100), raw)
	if len(reports) != 5 {
		t.Fatalf("%d reports", len(reports))
	}
	for key, want := range map[string]float64{
		"fixed_mean_s_iptables": 2, "fixed_mean_s_nftables": 3, "fixed_mean_s_wangell": 4, "fixed_stddev_s_wangell": 1,
		"flap_failed_requests_iptables": 3, "flap_aborted_runs_iptables": 1,
		"flap_failed_requests_wangell": 2, "flap_aborted_runs_wangell": 0,
		"short_conn_per_s_iptables": 1000, "short_conn_per_s_direct": 1003,
		"keepalive_req_per_s_wangell": 1002, "lan_short_conn_per_s_nftables": 1001,
		"disturbed_failed_requests_wangell": 6, "disturbed_scale_wrk_failed_requests_nftables": 1,
	} {
		if got := reports[0].Summary.Get(key); got != want {
			t.Errorf("%s = %v, want %v", key, got, want)
		}
	}
}

func TestEachReportRendersTheSameFromItsFile(t *testing.T) {
	raw, dir := invented(), t.TempDir()
	for _, r := range newReports(planOf(raw, 100), raw) {
		r.Params = map[string]any{paramRequests: 100}
		if err := r.Write(dir); err != nil {
			t.Fatal(err)
		}
		saved, err := report.Load(filepath.Join(dir, r.Name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		again, err := render(saved)
		if err != nil || string(again.Markdown()) != string(r.Markdown()) {
			t.Errorf("%s: %v", r.Name, err)
		}
	}
}

func TestReportOfOnePartIsWritten(t *testing.T) {
	raw := invented()
	for _, part := range []Samples{{Fixed: raw.Fixed}, {Rates: raw.Rates}, {Alternating: raw.Alternating}, {}} {
		for _, r := range newReports(planOf(part, 100), part) {
			if err := r.Write(t.TempDir()); err != nil {
				t.Error(err)
			}
		}
	}
}
