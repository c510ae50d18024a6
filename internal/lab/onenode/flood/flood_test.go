// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/lab"
	"wangell.loutres.me/internal/testutil/e2e"
	"wangell.loutres.me/internal/testutil/need"
)

// TestFloodRunsAndLeavesNothing runs the whole experiment with a short attack and a wangell built from this tree. It
// checks that the experiment works and cleans up, and that clients are served where no attack is, not what an attack
// costs.
func TestFloodRunsAndLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	wangell := filepath.Join(t.TempDir(), "wangell")
	if err := e2e.GoBuild("wangell.loutres.me/cmd/wangell", wangell); err != nil {
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
		if math.IsNaN(v.Value) != strings.HasPrefix(v.Key, "kube_proxy_") {
			t.Errorf("%s is %v", v.Key, v.Value)
		}
	}
	s := r.Raw.(Samples)
	for name, requests := range map[string]Requests{
		"near": s.Calm.Near, "distant": s.Calm.Far, "other service": s.Calm.Other,
	} {
		if len(requests.Times) == 0 || requests.Failed > 0 {
			t.Errorf("without an attack, %s: %d requests, %d failed: %v", name, len(requests.Times), requests.Failed,
				requests.Errors)
		}
	}
	if s.Warm.Sent == 0 || s.One.Sent == 0 || s.Many.Sent == 0 || s.Scan.Sent == 0 {
		t.Errorf("SYNs sent: %d, %d, %d, scan %d", s.Warm.Sent, s.One.Sent, s.Many.Sent, s.Scan.Sent)
	}
	for _, far := range s.Calm.Far.Times {
		if far < 300 { // two round trips: the handshake, and the answer
			t.Errorf("a distant client's request took %v ms", far)
		}
	}
}

func TestParametersThatCannotWork(t *testing.T) {
	for line, ok := range map[string]bool{
		"": true, "--quick": true, "--rate 300000 --time 20s --cold 10 --vanished 5 --rtt 50ms": true,
		"--rate 0": false, "--rate 3000000": false, "--time 0s": false, "--time 1h": false, "--cold 101": false,
		"--vanished 0": false, "--rtt 2s": false, "--rtt 1us": false,
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
