// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/wired"
)

// TestMain is also the controller process of the tests below.
func TestMain(m *testing.M) {
	if os.Getenv("LAB_TEST_FLEET_CONTROLLER") != "" {
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
		if err := wired.RunController(context.Background(), os.Stdin, os.Stdout, log); err != nil {
			slog.Error("controller process", "error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestFleetLearnsEverything runs the whole experiment with few daemons and services. It checks that every daemon
// learns everything, not how long that takes.
func TestFleetLearnsEverything(t *testing.T) {
	t.Setenv("LAB_TEST_FLEET_CONTROLLER", "1")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	params := Params{Quick: true, Idle: 100 * time.Millisecond, controller: []string{os.Args[0]}}
	out := lab.Output{Progress: func(int, int) {}, Log: t.Logf}
	reports, err := params.Run(ctx, out)
	if err != nil {
		t.Fatal(err)
	}
	r := reports[0]
	if err := r.Write(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, v := range r.Summary {
		if math.IsNaN(v.Value) || v.Value < 0 {
			t.Errorf("%s is %v", v.Key, v.Value)
		}
	}
	for key, want := range map[string]float64{"daemons": 20, "services": 200, "wakes": 100} {
		if got := r.Summary.Get(key); got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	s := r.Raw.(Samples)
	for name, times := range map[string][]float64{
		"join: connected": s.Join.Connected, "join: table": s.Join.Table, "join: nodes": s.Join.Nodes,
		"leader: connected": s.Leader.Connected, "leader: table": s.Leader.Table, "leader: nodes": s.Leader.Nodes,
		"leader: pods": s.Leader.Pods,
	} {
		if len(times) != 20 {
			t.Errorf("%s: %d times, want one for each of 20 daemons", name, len(times))
		}
	}
}

func TestParametersThatCannotWork(t *testing.T) {
	for line, ok := range map[string]bool{
		"": true, "--quick": true, "--daemons 100 --services 2000 --rate 500 --wakes 2s": true,
		"--daemons 1": false, "--daemons 5000": false, "--services 0": false, "--rate 0": false,
		"--services 100": false, "--quick --wakes 3s": false, "--wakes 1ns": false, "--idle=-1s": false,
	} {
		p := &Params{}
		flags := pflag.NewFlagSet("fleet", pflag.ContinueOnError)
		p.Flags(flags)
		if err := flags.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		if err := p.Check(flags); (err == nil) != ok {
			t.Errorf("%q: %v", line, err)
		}
	}
}
