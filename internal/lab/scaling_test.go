// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/monotime"
	"wangell.loutres.me/internal/scale"
)

const abWell = `Concurrency Level:      100
Time taken for tests:   32.382 seconds
Complete requests:      60000
Failed requests:        309
   (Connect: 0, Receive: 173, Length: 0, Exceptions: 136)
Total transferred:      8606313 bytes
Requests per second:    1852.90 [#/sec] (mean)
Time per request:       53.969 [ms] (mean)
`

func TestParseAb(t *testing.T) {
	for _, c := range []struct {
		name, stdout, stderr string
		want                 Load
		lost                 int
	}{
		{"failures", abWell, "", Load{Seconds: 32.382, Requests: 60000, PerSecond: 1852.9, Failed: 309}, 309},
		{"refusals", strings.Replace(abWell, "309", "0", 1) + "Non-2xx responses:      7\n", "", Load{Seconds: 32.382, Requests: 60000, PerSecond: 1852.9, Failed: 7}, 7},
		{"cut off", "Benchmarking 10.0.0.1 (be patient)...Total of 2820 requests completed\n", "apr_socket_recv: Connection refused (111)\n",
			Load{Requests: 2820, Aborted: "apr_socket_recv: Connection refused (111)"}, 1},
		{"hangs", "Total of 5 requests completed\n", "\napr_pollset_poll: The timeout specified has expired (70007)\n",
			Load{Requests: 5, Aborted: "apr_pollset_poll: The timeout specified has expired (70007)"}, 1},
		{"ten failures", "", "\nTest aborted after 10 failures\n\napr_socket_connect(): Connection refused (111)\n",
			Load{Aborted: "Test aborted after 10 failures apr_socket_connect(): Connection refused (111)"}, 1},
		{"usage", "", "ab: invalid URL\n", Load{Aborted: "ab: invalid URL"}, 1},
		{"killed", "", "", Load{Aborted: "ab told nothing"}, 1},
	} {
		if got := parseAb(c.stdout, c.stderr); got != c.want || got.lost() != c.lost {
			t.Errorf("%s: %+v, %d lost; want %+v, %d", c.name, got, got.lost(), c.want, c.lost)
		}
	}
}

func TestParseWrk(t *testing.T) {
	const well = `Running 3s test @ http://10.204.2.50/
  2 threads and 30 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     2.97ms    6.96ms  61.92ms   90.62%
    Req/Sec    12.99k     5.73k   31.49k    68.33%
  79309 requests in 3.09s, 11.26MB read
`
	const rate = "Requests/sec:  25635.00\nTransfer/sec:      3.64MB\n"
	for _, c := range []struct {
		name, stdout, stderr string
		want                 Load
	}{
		{"well", well + rate, "", Load{Seconds: 3.09, Requests: 79309, PerSecond: 25635}},
		{"errors", well + "  Socket errors: connect 1, read 20, write 300, timeout 4000\n  Non-2xx or 3xx responses: 50000\n" + rate, "",
			Load{Seconds: 3.09, Requests: 79309, PerSecond: 25635, Failed: 54321}},
		{"minutes", "  100 requests in 1.50m, 1MB read\nRequests/sec:  1.11\n", "", Load{Seconds: 90, Requests: 100, PerSecond: 1.11}},
		{"refused", "", "unable to connect to 10.204.0.11:9 Connection refused\n", Load{Aborted: "unable to connect to 10.204.0.11:9 Connection refused"}},
		{"killed", "", "", Load{Aborted: "wrk told nothing"}},
	} {
		if got := parseWrk(c.stdout, c.stderr); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// FuzzTools has the parsers read anything.
func FuzzTools(f *testing.F) {
	f.Add(abWell, "apr_socket_recv: Connection refused (111)")
	f.Add("  1 requests in 3.09s, 1MB read\n  Socket errors: connect 1, read 2, write 3, timeout 4\n", "")
	f.Fuzz(func(t *testing.T, stdout, stderr string) {
		for _, l := range []Load{parseAb(stdout, stderr), parseWrk(stdout, stderr)} {
			if l.Aborted != "" && l.lost() == 0 {
				t.Errorf("broke off and lost nothing: %+v", l)
			}
		}
	})
}

func TestSum(t *testing.T) {
	got := sum([]Load{{Seconds: 1, Requests: 10, PerSecond: 10}, {Seconds: 3, Requests: 20, PerSecond: 7, Failed: 2, Aborted: "a"}, {Aborted: "b", Failed: 1}})
	if want := (Load{Seconds: 3, Requests: 30, PerSecond: 17, Failed: 3, Aborted: "a"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	got = inSequence([]Load{{Seconds: 1, Requests: 10, PerSecond: 10}, {Seconds: 3, Requests: 6, PerSecond: 2, Failed: 2, Aborted: "a"}, {Aborted: "b", Failed: 1}})
	if want := (Load{Seconds: 4, Requests: 16, PerSecond: 4, Failed: 3, Aborted: "a"}); got != want {
		t.Errorf("one after the other: %+v, want %+v", got, want)
	}
	if got := inSequence(nil); got != (Load{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

func TestInTurn(t *testing.T) {
	modes := []string{"a", "b", "c"}
	if got := inTurn(modes, 0); !slices.Equal(got, modes) {
		t.Error(got)
	}
	if got := inTurn(modes, 1); !slices.Equal(got, []string{"c", "b", "a"}) || modes[0] != "a" {
		t.Error(got, modes)
	}
}

func TestRateGroups(t *testing.T) {
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

func TestCPUMeter(t *testing.T) {
	begin := time.Unix(1000, 0)
	var m cpuMeter
	if _, ok := m.observe(begin, map[string]time.Duration{"a": time.Second}); ok {
		t.Error("the first look told a use")
	}
	// a has used 1 s of the 2, b 3 s on two cores, c is new and does not count.
	got, ok := m.observe(begin.Add(time.Second), map[string]time.Duration{"a": time.Second, "b": time.Second})
	if !ok || got != 0 {
		t.Error(got, ok)
	}
	got, ok = m.observe(begin.Add(3*time.Second), map[string]time.Duration{"a": 2 * time.Second, "b": 4 * time.Second, "c": 9 * time.Second})
	if !ok || got != 1 {
		t.Errorf("%v cores for each pod, want 1", got)
	}
	if _, ok := m.observe(begin.Add(4*time.Second), map[string]time.Duration{"d": 0}); ok {
		t.Error("no pod of before is there, and a use was told")
	}
}

func TestPodCPU(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	write := func(file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(v1, "node-1/kubepods/burstable/podA/cpuacct.usage"), "1500000000\n")
	write(filepath.Join(v2, "node-1/kubepods/podB/cpu.stat"), "usage_usec 250000\nuser_usec 1\n")
	write(filepath.Join(v2, "node-1/kubepods/burstable/podA/cpu.stat"), "nr_periods 0\n") // the controller is in version 1
	for uid, want := range map[string]time.Duration{"A": 1500 * time.Millisecond, "B": 250 * time.Millisecond} {
		if got, err := podCPU([]string{v1, v2}, "/node-1", uid); err != nil || got != want {
			t.Errorf("pod %s: %v, %v; want %v", uid, got, err, want)
		}
	}
	if got, err := podCPU([]string{v1, v2}, "/node-1", "C"); err == nil {
		t.Errorf("a pod that is not there: %v", got)
	}
}

// TestCPUPolicy has the rule of the experiment at the interval at which the autoscaler looks.
func TestCPUPolicy(t *testing.T) {
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
		d := s.Decide(p, scale.Observation{At: monotime.Time(1 + int64(i)*int64(10*time.Second)), Replicas: replicas, Value: c.cores})
		if d.Replicas != c.want {
			t.Errorf("look %d: %v cores for each of %d pods: %s; want %d", i, c.cores, replicas, d, c.want)
		}
		replicas = d.Replicas
	}
}

func TestAddressFromEnd(t *testing.T) {
	p := netip.MustParsePrefix("10.204.0.0/22")
	for n, want := range map[int]string{0: "10.204.3.255", 1: "10.204.3.254", 300: "10.204.2.211"} {
		if got := addressFromEnd(p, n).String(); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestScalingDefaults(t *testing.T) {
	full, err := ScalingConfig{Cluster: "x"}.withDefaults()
	if err != nil || full.Requests != 500_000 || full.Repetitions != 10 || full.Interval != 10*time.Second || full.Clients != VantagePods {
		t.Errorf("%+v, %v", full, err)
	}
	quick, err := ScalingConfig{Cluster: "x", Quick: true, Repetitions: 7}.withDefaults()
	if err != nil || quick.Requests >= full.Requests || quick.Repetitions != 7 {
		t.Errorf("%+v, %v", quick, err)
	}
	for _, bad := range []ScalingConfig{{}, {Cluster: "x", Modes: []string{"ipvs"}}, {Cluster: "x", Cases: []string{"z"}}, {Cluster: "x", Parts: []string{"z"}}, {Cluster: "x", Clients: "moon"}, {Cluster: "x", Requests: -1}} {
		if _, err := bad.withDefaults(); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// TestScalingReports makes every report of samples, some of which broke off, and draws it.
func TestScalingReports(t *testing.T) {
	cfg, err := ScalingConfig{Cluster: "x", Quick: true, Repetitions: 3}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	cores := 0.4
	var raw ScalingRaw
	for j, mode := range cfg.rateModes() {
		for i := range 3 {
			l := Load{Seconds: float64(i + j + 1), Requests: 100, PerSecond: float64(1000*i + j)}
			for _, clients := range rateClients {
				raw.Rates = append(raw.Rates, RateSample{rateOf{mode, clients, false}, i, l}, RateSample{rateOf{mode, clients, true}, i, l})
			}
			if mode == ModeDirect {
				continue
			}
			raw.Fixed = append(raw.Fixed, FixedSample{mode, i, l})
			for _, n := range cfg.replicaSettings() {
				raw.Replicas = append(raw.Replicas, ReplicaSample{mode, n, i, l})
			}
		}
		if mode == ModeDirect {
			continue
		}
		m := AlternatingMode{Mode: mode, Steps: []Step{{At: 0, Wanted: 1, Ready: 1}, {At: 5, Wanted: 3, Ready: 1, CPU: &cores}, {At: 7, Wanted: 3, Ready: 3}},
			Runs: []AlternatingRun{{At: 0, End: 6, Concurrency: 100, Load: Load{Requests: 10}}, {At: 6, End: 7, Concurrency: 1, Load: Load{Failed: 2}}}}
		if mode != ModeWangell {
			m.Runs = append(m.Runs, AlternatingRun{At: 7, End: 8, Concurrency: 100, Load: Load{Aborted: "cut off"}})
		}
		raw.Alternating = append(raw.Alternating, m)
		for _, c := range cfg.flapCases() {
			raw.Flap = append(raw.Flap, FlapSample{Mode: mode, FlapCase: c, Load: Load{Requests: 100, Failed: j}})
		}
	}
	raw.Fixed = append(raw.Fixed, FixedSample{ModeIptables, 3, Load{Aborted: "cut off"}}) // does not count for the mean
	reports := scalingReports(cfg, raw)
	if len(reports) != 5 {
		t.Fatalf("%d reports", len(reports))
	}
	for key, want := range map[string]float64{
		"fixed_mean_s_iptables": 2, "fixed_mean_s_nftables": 3, "fixed_mean_s_wangell": 4, "fixed_stddev_s_wangell": 1,
		"flap_failed_requests_iptables": 3, "flap_aborted_runs_iptables": 1, "flap_failed_requests_wangell": 2, "flap_aborted_runs_wangell": 0,
		"short_conn_per_s_iptables": 1000, "short_conn_per_s_direct": 1003, "keepalive_req_per_s_wangell": 1002, "lan_short_conn_per_s_nftables": 1001,
		"disturbed_failed_requests_wangell": 6, "disturbed_delete_ab_failed_requests_nftables": 1,
	} {
		if got := reports[0].Summary.Get(key); got != want {
			t.Errorf("%s = %v, want %v", key, got, want)
		}
	}
	dir := t.TempDir()
	for _, r := range reports {
		if err := r.Write(dir); err != nil {
			t.Error(err)
		}
	}
	// A part alone makes a report too.
	for _, part := range []ScalingRaw{{Fixed: raw.Fixed}, {Rates: raw.Rates}, {Alternating: raw.Alternating}, {}} {
		for _, r := range scalingReports(cfg, part) {
			if err := r.Write(t.TempDir()); err != nil {
				t.Error(err)
			}
		}
	}
}
