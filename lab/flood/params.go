// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/onenode"
)

// Bounds of the attack: it stays in network namespaces of its own, and ends.
const (
	maxRate = 2_000_000
	maxTime = 2 * time.Minute
)

// Parts of the experiment.
const (
	// PartMachine attacks an instance of its own on this machine.
	PartMachine = "machine"
	// PartCluster attacks a warm service of each peer on a cluster.
	PartCluster = "cluster"
)

// AllParts are the parts in the order in which they run.
var AllParts = []string{PartMachine, PartCluster}

// Params configures the experiment.
type Params struct {
	// Wangell is the program to measure. Default: see onenode.FindWangell.
	Wangell string
	// Rate is the number of forged SYNs per second, at most maxRate. Default: 200,000, or 20,000 if Quick.
	Rate int
	// Time is how long each flood lasts, at most maxTime. Default: 10 s, or 1 s if Quick.
	Time time.Duration
	// Cold is the number of services that sleep and are attacked together, 1 to 100. Default: 50, or 4 if Quick.
	Cold int
	// Vanished is the number of clients that vanish, 1 to 20,000. Default: 10,000, or 200 if Quick.
	Vanished int
	// RTT is the long round trip. Default: 150 ms.
	RTT time.Duration
	// WakeProof is spec.wakeProof of the services that sleep and are flooded: Auto, Always or Never. Default: Always.
	WakeProof string
	// Cluster is the cluster.json of a cluster started by test/cluster with Wangell's chart, on which kube-proxy, Wangell
	// and, if it is installed, Knative are attacked too. Default: none.
	Cluster string
	// Parts are the measured ones of AllParts. Default: PartMachine, and PartCluster if there is a Cluster.
	Parts []string
	// Quick makes short attacks: enough to see that the experiment works, not to trust the numbers.
	Quick bool
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Wangell, "wangell", "", "program to measure (default: the wangell beside this program, or in $PATH)")
	f.IntVar(&p.Rate, "rate", 0, "forged SYNs per second (default 200000, with --quick 20000)")
	f.DurationVar(&p.Time, "time", 0, "how long each flood lasts (default 10s, with --quick 1s)")
	f.IntVar(&p.Cold, "cold", 0, "sleeping services that are attacked together (default 50, with --quick 4)")
	f.IntVar(&p.Vanished, "vanished", 0, "clients that vanish (default 10000, with --quick 200)")
	f.DurationVar(&p.RTT, "rtt", 150*time.Millisecond, "round trip of the distant client")
	f.StringVar(&p.WakeProof, "wake-proof", string(v1alpha1.WakeProofAlways),
		"spec.wakeProof of the sleeping services that are flooded: Auto, Always or Never")
	f.StringVar(&p.Cluster, "cluster", "",
		"cluster.json of a cluster started by test/cluster: attack kube-proxy, Wangell and Knative there too (default none)")
	f.StringSliceVar(&p.Parts, "parts", nil,
		"which parts: machine, an instance of its own; cluster, the peers on a cluster (default: machine, and cluster "+
			"with --cluster)")
	f.BoolVar(&p.Quick, "quick", false, "short attacks: to see that it works, not to trust the numbers")
}

// Check implements lab.Params.
func (p *Params) Check(f *pflag.FlagSet) error {
	for _, n := range []struct {
		flag        string
		value, most int
	}{{"rate", p.Rate, maxRate}, {"cold", p.Cold, 100}, {"vanished", p.Vanished, 20_000}} {
		if f.Changed(n.flag) && (n.value < 1 || n.value > n.most) {
			return fmt.Errorf("--%s %d: want 1 to %d", n.flag, n.value, n.most)
		}
	}
	if f.Changed("time") && (p.Time <= 0 || p.Time > maxTime) {
		return fmt.Errorf("--time %v: want more than 0 and at most %v", p.Time, maxTime)
	}
	if p.RTT < time.Millisecond || p.RTT > time.Second {
		return fmt.Errorf("--rtt %v: want 1ms to 1s", p.RTT)
	}
	for _, part := range p.Parts {
		switch {
		case !slices.Contains(AllParts, part):
			return fmt.Errorf("--parts: there is no %q, only %s", part, strings.Join(AllParts, " "))
		case part == PartCluster && p.Cluster == "":
			return cluster.CheckFlag(p.Cluster)
		}
	}
	switch v1alpha1.WakeProof(p.WakeProof) {
	case v1alpha1.WakeProofAuto, v1alpha1.WakeProofAlways, v1alpha1.WakeProofNever, "":
	default:
		return fmt.Errorf("--wake-proof %q: want Auto, Always or Never", p.WakeProof)
	}
	return nil
}

func (p Params) withDefaults() (Params, error) {
	rate, duration, cold, vanished := 200_000, 10*time.Second, 50, 10_000
	if p.Quick {
		rate, duration, cold, vanished = 20_000, time.Second, 4, 200
	}
	if p.Rate == 0 {
		p.Rate = rate
	}
	if p.Time == 0 {
		p.Time = duration
	}
	if p.Cold == 0 {
		p.Cold = cold
	}
	if p.Vanished == 0 {
		p.Vanished = vanished
	}
	if p.WakeProof == "" {
		p.WakeProof = string(v1alpha1.WakeProofAlways)
	}
	if p.RTT == 0 {
		p.RTT = 150 * time.Millisecond
	}
	if len(p.Parts) == 0 {
		p.Parts = AllParts
		if p.Cluster == "" {
			p.Parts = []string{PartMachine}
		}
	}
	var err error
	if p.Wangell == "" && slices.Contains(p.Parts, PartMachine) {
		p.Wangell, err = onenode.FindWangell()
	}
	return p, err
}

// scanProofs are the kinds of wakeProof that are scanned.
var scanProofs = []v1alpha1.WakeProof{v1alpha1.WakeProofAlways, v1alpha1.WakeProofAuto}

// scanPasses is how often the range is scanned: scanners repeat what is not answered. The second time, the scanning
// host has proven where it is, as its kernel answers challenges.
const scanPasses = 2
