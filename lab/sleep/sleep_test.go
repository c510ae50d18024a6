// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
)

// TestSleepRunsAndLeavesNothing runs all parts with few samples and a wangell built from this tree. It checks that the
// experiment works and cleans up, not how long things take.
func TestSleepRunsAndLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	wangell, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	progress := 0
	out := lab.Output{Progress: func(int, int) { progress++ }, Log: t.Logf}
	params := Params{Wangell: wangell, Apps: []string{"hello"}, Rounds: 1, Sleepers: 3, Freezes: 6, Connections: 9,
		Flap: 2 * time.Second, Quick: true}
	reports, err := params.Run(ctx, out)
	if err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	if err := r.Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]float64{
		"sleepers": 3, "connections_tried": 9, "connections_survived": 9, "freezes": 6, "flap_failed": 0,
		"hello_cold_rss_mb": 0,
	} {
		if got := r.Summary.Get(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	for _, key := range []string{"hello_warm_p50_ms", "hello_reclaimed_p99_ms", "hello_frozen_rss_mb",
		"hello_prepared_rss_mb", "storm_p99_ms", "reclaimed_storm_p99_ms", "kept_p50_ms", "sleeper_rss_mb", "flap_requests"} {
		if got := r.Summary.Get(key); math.IsNaN(got) || got <= 0 {
			t.Errorf("%s is %v", key, got)
		}
	}
	if progress == 0 {
		t.Error("no progress was reported")
	}
}

func TestParametersThatCannotWorkAreRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--apps hello,solitaire":      "--apps solitaire: want some of hello, nginx",
		"--rounds 10001":              "--rounds 10001: want 0 to 10000",
		"--freezes 1 --connections 0": "--connections 0: want some with --freezes 1",
		"--parts moon":                `--parts: there is no "moon", only machine, cluster`,
		"--parts cluster":             "--cluster is missing",
		"--quick":                     "",
	} {
		var p Params
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		p.Flags(flags)
		if err := flags.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		switch err := p.Check(flags); {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	quick := Params{Rounds: -1, Sleepers: -1, Freezes: 0, Connections: -1, Flap: -1, Quick: true}.withDefaults()
	if quick.Rounds != 2 || quick.Sleepers != 3 || quick.Freezes != 0 || quick.Flap != 3*time.Second {
		t.Errorf("%+v", quick)
	}
}

func TestReportComparesStatesOfEachApp(t *testing.T) {
	s := Samples{Answers: []Answer{
		{App: "redis", State: stateWarm, FirstByte: 0.3, Connect: 0.1, Resident: 120},
		{App: "redis", State: stateReclaimed, FirstByte: 4, Connect: 0.1, Resident: 9, Swapped: 111},
		{App: "redis", State: stateReclaimed, FirstByte: 6, Connect: 0.1, Resident: 11, Swapped: 109},
		{App: "redis", State: stateCold, FirstByte: 50, Connect: 49},
	}, Survival: &Survival{Tried: 10, Survived: 9, Exchange: []float64{1}}, Kube: &Kube{
		Answers: []Answer{
			{App: "hello", State: stateFrozen, FirstByte: 2}, {App: "hello", State: stateFrozen, FirstByte: 4},
			{App: "hello", State: stateCold, FirstByte: 210},
		},
		Knative:       []Answer{{App: "hello", State: stateCold, FirstByte: 1500}},
		RequestsAwake: 0.5, RequestsFrozen: 0.005,
	}}
	r := newReport(s)
	for key, want := range map[string]float64{
		"redis_warm_p50_ms": 0.3, "redis_reclaimed_p50_ms": 5, "redis_reclaimed_rss_mb": 10, "redis_cold_rss_mb": 0,
		"connections_tried": 10, "connections_survived": 9,
		"k8s_frozen_p50_ms": 3, "k8s_cold_p50_ms": 210, "knative_cold_p50_ms": 1500, "knative_cold_over_k8s_frozen": 500,
		"k8s_requests_freed_pct": 99,
	} {
		if got := r.Summary.Get(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if text := string(r.Markdown()); !strings.Contains(text, "reclaimed") {
		t.Error(text)
	}
}
