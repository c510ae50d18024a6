// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
)

// TestFloodRunsAndLeavesNothing runs the whole experiment with a short attack and a wangell built from this tree. It
// checks that the experiment works and cleans up, and that clients are served where no attack is, not what an attack
// costs.
func TestFloodRunsAndLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	wangell, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	params := Params{Wangell: wangell, Quick: true, Rate: 5000}
	reports, err := params.Run(ctx, lab.Output{Progress: func(int, int) {}, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	if err := r.Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Summary {
		peer := slices.ContainsFunc([]string{"kube_proxy_", "wangell_cluster_", "knative_"}, func(prefix string) bool {
			return strings.HasPrefix(v.Key, prefix)
		})
		if math.IsNaN(v.Value) != peer {
			t.Errorf("%s is %v", v.Key, v.Value)
		}
	}
	s := r.Raw.(Samples)
	for name, requests := range map[string]Requests{
		"near": s.Calm.Near, "distant": s.Calm.Far, "other service": s.Calm.Other,
		"near on sleeping services": s.CalmMany.Near, "distant on sleeping services": s.CalmMany.Far,
	} {
		if len(requests.Times) == 0 || requests.Failed > 0 {
			t.Errorf("without an attack, %s: %d requests, %d failed: %v", name, len(requests.Times), requests.Failed,
				requests.Errors)
		}
	}
	if s.Warm.Sent == 0 || s.One.Sent == 0 || s.Many.Sent == 0 {
		t.Errorf("SYNs sent: %d, %d, %d", s.Warm.Sent, s.One.Sent, s.Many.Sent)
	}
	// The scanning host answers challenges, and is within the budgets of wakes.
	for key, want := range map[string]float64{"scan_services": scanServices, "scan_pods_started": 0,
		"scan_auto_pods_started": scanServices, "scan_repeated_pods_started": scanServices,
		"scan_repeated_auto_pods_started": scanServices} {
		if got := r.Summary.Get(key); got != want {
			t.Errorf("%s is %v, want %v; scans %+v", key, got, want, s.Scans)
		}
	}
	for _, far := range slices.Concat(s.Calm.Far.Times, s.CalmMany.Far.Times) {
		if far < 300 { // two round trips: the handshake, and the answer
			t.Errorf("a distant client's request took %v ms", far)
		}
	}
}

// TestPeersAreInTheReport checks what a run on a cluster adds to the report.
func TestPeersAreInTheReport(t *testing.T) {
	s := Samples{Peers: []Peer{
		{Name: PeerWangell, Calm: Requests{Times: []float64{1}},
			Flood: Part{Sent: 100, Arrived: 90, Seconds: 1, Near: Requests{Times: []float64{1, 2}}}},
		{Name: PeerKubeProxy, Flood: Part{Near: Requests{Times: []float64{3}, Failed: 7, Errors: []string{"timeout"}}}},
	}}
	r := newReport(s)
	for key, want := range map[string]float64{"wangell_cluster_failed": 0, "wangell_cluster_p99_ms": 1.99,
		"kube_proxy_failed": 7, "kube_proxy_p99_ms": 3} {
		if got := r.Summary.Get(key); math.Abs(got-want) > 0.02 {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if got := r.Summary.Get("knative_failed"); !math.IsNaN(got) {
		t.Errorf("Knative was not measured, and knative_failed is %v", got)
	}
	if text := string(r.Markdown()); !strings.Contains(text, "| kube-proxy: flood") || !strings.Contains(text, "timeout") {
		t.Errorf("the report does not have the peers:\n%s", text)
	}
}

func TestParametersThatCannotWork(t *testing.T) {
	for line, ok := range map[string]bool{
		"": true, "--quick": true, "--rate 300000 --time 20s --cold 10 --vanished 5 --rtt 50ms": true,
		"--rate 0": false, "--rate 3000000": false, "--time 0s": false, "--time 1h": false, "--cold 101": false,
		"--vanished 0": false, "--parts lan": false, "--parts cluster": false, "--parts cluster --cluster x": true,
		"--rtt 2s": false, "--rtt 1us": false,
	} {
		p := &Params{}
		flags := pflag.NewFlagSet("flood", pflag.ContinueOnError)
		p.Flags(flags)
		if err := flags.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		if err := p.Check(flags); (err == nil) != ok {
			t.Errorf("%q: %v", line, err)
		}
	}
}
