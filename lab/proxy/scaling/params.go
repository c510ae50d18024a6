// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab/cluster"
)

// Parts of the experiment.
const (
	PartFixed       = "fixed"
	PartRates       = "rates"
	PartReplicas    = "replicas"
	PartAlternating = "alternating"
	PartFlap        = "flap"
)

// AllParts are the parts in the order in which they run.
var AllParts = []string{PartFixed, PartRates, PartReplicas, PartAlternating, PartFlap}

// Fixed settings.
const (
	concurrency   = 100  // simultaneous connections of ab
	targetCPU     = 0.25 // cores per pod, for the autoscaler
	fixedReplicas = 3    // pods with a fixed load
	mostReplicas  = 6    // pods of PartReplicas
	rateHosts     = 3    // clients of PartRates, one for each pod

	// alternatingCPU is the autoscaler's target for PartAlternating, in cores per pod: more than the total use of one
	// client, and much less than a third of the total use of a hundred connections, also on a busy machine.
	alternatingCPU = 0.04
	// lightShare is how many times fewer requests a light run of PartAlternating makes than a heavy one.
	lightShare = 20
	// defaultDelay is the default of Params.AlternatingDelay.
	defaultDelay = 30 * time.Millisecond
)

// Params configures the experiment.
type Params struct {
	// Cluster is the cluster.json of a cluster started by test/cluster, with Wangell's chart unless Modes omits Wangell.
	Cluster string
	// Quick makes everything small: enough to see that the experiment works, not to trust the numbers.
	Quick bool
	// Modes are the measured ones of AllModes, Parts those of AllParts. Default: all.
	Modes, Parts []string
	// Cases are the keys of the measured FlapCases. Default: all, or three if Quick.
	Cases []string
	// Clients is the place of clients: cluster.VantagePods (default) or cluster.VantageLAN. PartRates has both.
	Clients string
	// Requests is the number of requests of a run of ab, Repetitions how often the runs are repeated. Default: 500,000
	// and 10, or 4,000 and 2 if Quick.
	Requests, Repetitions int
	// Interval is the time between two decisions of the autoscaler, and between two disturbances. Default: 10 s, or 1 s if
	// Quick.
	Interval time.Duration
	// FlapTime is how long each disturbance of PartFlap lasts. Default: 1 min, or 4 s if Quick.
	FlapTime time.Duration
	// AlternatingDelay is how long the server of PartAlternating waits before each answer. Default: 30 ms.
	AlternatingDelay time.Duration
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	all := func(names []string) string { return strings.Join(names, ",") }
	f.StringVar(&p.Cluster, "cluster", "", cluster.FlagUsage)
	f.BoolVar(&p.Quick, "quick", false, "everything small: to see that it works, not to trust the numbers")
	f.StringSliceVar(&p.Modes, "modes", nil, "what is measured (default all: "+all(AllModes)+")")
	f.StringSliceVar(&p.Parts, "parts", nil, "which parts (default all: "+all(AllParts)+")")
	f.StringSliceVar(&p.Cases, "cases", nil, "cases of flap (default all, with --quick three: "+all(FlapCaseKeys())+")")
	f.StringVar(&p.Clients, "clients", cluster.VantagePods,
		"where clients are: pods of the first node, or lan, a host outside of the cluster; rates has both")
	f.IntVar(&p.Requests, "requests", 0, "number of requests of a run of ab (default 500000, with --quick 4000)")
	f.IntVar(&p.Repetitions, "repetitions", 0, "number of repetitions (default 10, with --quick 2)")
	f.DurationVar(&p.Interval, "interval", 0, "interval of autoscaler and disturbances (default 10s, with --quick 1s)")
	f.DurationVar(&p.FlapTime, "flap-time", 0, "duration of each disturbance (default 1m, with --quick 4s)")
	f.DurationVar(&p.AlternatingDelay, "alternating-delay", defaultDelay,
		"how long the server of alternating waits before each answer")
}

// Check implements lab.Params.
func (p *Params) Check(*pflag.FlagSet) error {
	if p.Requests < 0 || p.Repetitions < 0 || p.Interval < 0 || p.FlapTime < 0 || p.AlternatingDelay < 0 {
		return errors.New("a number is negative")
	}
	for _, check := range []struct {
		flag       string
		got, known []string
	}{
		{"--modes", p.Modes, AllModes}, {"--parts", p.Parts, AllParts}, {"--cases", p.Cases, FlapCaseKeys()},
		{"--clients", []string{p.Clients}, []string{"", cluster.VantagePods, cluster.VantageLAN}},
	} {
		for _, s := range check.got {
			if !slices.Contains(check.known, s) {
				return fmt.Errorf("%s: there is no %q, only %s", check.flag, s, strings.Join(check.known, " "))
			}
		}
	}
	return cluster.CheckFlag(p.Cluster)
}

func (p Params) withDefaults() Params {
	size := struct {
		requests, repetitions int
		interval, flap        time.Duration
		cases                 []string
	}{500_000, 10, 10 * time.Second, time.Minute, FlapCaseKeys()}
	if p.Quick {
		size.requests, size.repetitions = 4_000, 2
		size.interval, size.flap = time.Second, 4*time.Second
		size.cases = []string{"scale_ab", "scale_wrk", "delete_ab"}
	}
	p.Requests = cmp.Or(p.Requests, size.requests)
	p.Repetitions = cmp.Or(p.Repetitions, size.repetitions)
	p.Interval = cmp.Or(p.Interval, size.interval)
	p.FlapTime = cmp.Or(p.FlapTime, size.flap)
	p.Clients = cmp.Or(p.Clients, cluster.VantagePods)
	p.AlternatingDelay = cmp.Or(p.AlternatingDelay, defaultDelay)
	if len(p.Cases) == 0 {
		p.Cases = size.cases
	}
	if len(p.Modes) == 0 {
		p.Modes = AllModes
	}
	if len(p.Parts) == 0 {
		p.Parts = AllParts
	}
	return p
}

// flapCases returns the measured FlapCases.
func (p Params) flapCases() []FlapCase {
	return slices.DeleteFunc(slices.Clone(FlapCases), func(f FlapCase) bool { return !slices.Contains(p.Cases, f.Key) })
}

// replicaSettings returns the measured numbers of pods; 0 is autoscaled.
func (p Params) replicaSettings() []int {
	if p.Quick {
		return []int{1, mostReplicas, 0}
	}
	return []int{1, 2, 3, 4, 5, mostReplicas, 0}
}

// rateSize returns the number of repetitions of PartRates, the number of turns of each mode in a repetition, and the
// length of a turn. Turns are short because the speed of the machine changes within seconds, by more than the modes
// differ.
func (p Params) rateSize() (repetitions, turns int, length time.Duration) {
	if p.Quick {
		return 1, 1, time.Second
	}
	return 5, 3, 2 * time.Second
}

// alternatingRequests returns the number of requests of a heavy run: even a quick one outlasts the autoscaler's
// interval.
func (p Params) alternatingRequests() int {
	if p.Quick {
		return 4 * p.Requests
	}
	return p.Requests
}
