// SPDX-License-Identifier: Apache-2.0

package sleep

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/onenode"
)

// Parts of the experiment.
const (
	PartMachine = "machine"
	PartCluster = "cluster"
)

// AllParts are the parts in the order in which they run.
var AllParts = []string{PartMachine, PartCluster}

// Params configures the experiment.
type Params struct {
	// Cluster is the cluster.json of a cluster started by test/cluster, with Wangell's chart and
	// daemon.freezing.enabled, for PartCluster.
	Cluster string
	// Parts are the measured ones of AllParts. Default: PartMachine, and PartCluster if there is a Cluster.
	Parts []string
	// Wangell is the program to measure. Default: see onenode.FindWangell.
	Wangell string
	// Apps are the names of the programs that are measured. Default: all.
	Apps []string
	// Rounds is how often each program is measured in each state, 0 to 10,000. Default: 30, or 2 if Quick.
	Rounds int
	// Sleepers is the number of pods that are frozen at once, 0 to 4,000. Default: 1,000, or 3 if Quick.
	Sleepers int
	// Freezes is how often pods are frozen and thawed, all services together, while connections are open, and
	// Connections is their number. Default: 1,000 each, or 6 and 9 if Quick.
	Freezes, Connections int
	// Flap is how long clients send at moments at which pods are just being frozen. Default: 1 min, or 3 s if Quick.
	Flap time.Duration
	// Quick measures little: enough to see that the experiment works, not to trust the numbers.
	Quick bool
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Cluster, "cluster", "", "cluster.json of a cluster started by test/cluster: measure there too, "+
		"beside Knative if it is installed (default none)")
	f.StringSliceVar(&p.Parts, "parts", nil, "which parts: machine, instances on this machine; cluster, the hello "+
		"image on a cluster (default: machine, and cluster with --cluster)")
	f.StringVar(&p.Wangell, "wangell", "", "program to measure (default: the wangell beside this program, or in $PATH)")
	f.StringSliceVar(&p.Apps, "apps", nil, "programs that are asleep: "+strings.Join(appNames(), ", ")+" (default: all)")
	f.IntVar(&p.Rounds, "rounds", -1, "requests to each program in each state (default 30, with --quick 2)")
	f.IntVar(&p.Sleepers, "sleepers", -1, "pods that are frozen at once (default 1000, with --quick 3)")
	f.IntVar(&p.Freezes, "freezes", -1, "freezes and thaws with open connections (default 1000, with --quick 6)")
	f.IntVar(&p.Connections, "connections", -1, "open connections (default 1000, with --quick 9)")
	f.DurationVar(&p.Flap, "flap", -1, "how long pods flap between frozen and running (default 1m, with --quick 3s)")
	f.BoolVar(&p.Quick, "quick", false, "few samples: to see that it works, not to trust the numbers")
}

// Check implements lab.Params.
func (p *Params) Check(*pflag.FlagSet) error {
	for _, name := range p.Apps {
		if !slices.Contains(appNames(), name) {
			return fmt.Errorf("--apps %s: want some of %s", name, strings.Join(appNames(), ", "))
		}
	}
	for _, part := range p.Parts {
		if !slices.Contains(AllParts, part) {
			return fmt.Errorf("--parts: there is no %q, only %s", part, strings.Join(AllParts, ", "))
		}
	}
	d := p.withDefaults()
	if d.measures(PartCluster) {
		if err := cluster.CheckFlag(d.Cluster); err != nil {
			return err
		}
	}
	for _, v := range []struct {
		flag    string
		n, most int
	}{
		{"rounds", d.Rounds, 10_000}, {"sleepers", d.Sleepers, 4000}, {"freezes", d.Freezes, 1_000_000},
		{"connections", d.Connections, 10_000},
	} {
		if v.n > v.most {
			return fmt.Errorf("--%s %d: want 0 to %d", v.flag, v.n, v.most)
		}
	}
	if d.Freezes > 0 && d.Connections == 0 {
		return fmt.Errorf("--connections 0: want some with --freezes %d", d.Freezes)
	}
	return nil
}

// withDefaults replaces negative values.
func (p Params) withDefaults() Params {
	type amount struct {
		n           *int
		full, quick int
	}
	for _, a := range []amount{
		{&p.Rounds, 30, 2}, {&p.Sleepers, 1000, 3}, {&p.Freezes, 1000, 6}, {&p.Connections, 1000, 9},
	} {
		switch {
		case *a.n >= 0:
		case p.Quick:
			*a.n = a.quick
		default:
			*a.n = a.full
		}
	}
	if p.Flap < 0 {
		p.Flap = time.Minute
		if p.Quick {
			p.Flap = 3 * time.Second
		}
	}
	if len(p.Parts) == 0 {
		p.Parts = []string{PartMachine}
		if p.Cluster != "" {
			p.Parts = AllParts
		}
	}
	if len(p.Apps) == 0 {
		p.Apps = appNames()
	}
	return p
}

// measures reports whether a part is measured.
func (p Params) measures(part string) bool { return slices.Contains(p.Parts, part) }

func (p Params) program() (string, error) {
	if p.Wangell != "" {
		return p.Wangell, nil
	}
	return onenode.FindWangell()
}
