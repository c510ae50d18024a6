// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab/cluster"
)

// Params configures the experiment.
type Params struct {
	// Cluster is the cluster.json of a cluster started by test/cluster. Wangell's chart and Knative (test/knative) must be
	// installed if Sides needs them.
	Cluster string
	// Requests is the number of cold requests to each side. Default: 30, or 3 if Quick.
	Requests int
	// Quick makes few requests: enough to see that the experiment works, not to trust the numbers.
	Quick bool
	// Sides are the measured ones of AllSides. Default: all.
	Sides []string
	// Seed is the seed of the random pauses.
	Seed uint64
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Cluster, "cluster", "", cluster.FlagUsage)
	f.IntVar(&p.Requests, "requests", 0, "number of cold requests to each side (default 30, with --quick 3)")
	f.BoolVar(&p.Quick, "quick", false, "few requests: to see that it works, not to trust the numbers")
	f.StringSliceVar(&p.Sides, "sides", nil, "what is measured (default all: "+strings.Join(AllSides, ",")+")")
	f.Uint64Var(&p.Seed, "seed", 1, "seed of the random pauses")
}

// Check implements lab.Params.
func (p *Params) Check(f *pflag.FlagSet) error {
	if p.Requests < 0 || f.Changed("requests") && p.Requests == 0 {
		return fmt.Errorf("--requests %d: want at least 1", p.Requests)
	}
	for _, s := range p.Sides {
		if !slices.Contains(AllSides, s) {
			return fmt.Errorf("--sides: there is no side %q, only %s", s, strings.Join(AllSides, ", "))
		}
	}
	return cluster.CheckFlag(p.Cluster)
}

func (p Params) withDefaults() Params {
	switch {
	case p.Requests == 0 && p.Quick:
		p.Requests = 3
	case p.Requests == 0:
		p.Requests = 30
	}
	if len(p.Sides) == 0 {
		p.Sides = AllSides
	}
	return p
}

// measuresKnative reports whether a side needs Knative.
func (p Params) measuresKnative() bool {
	return slices.Contains(p.Sides, SideKnative) || slices.Contains(p.Sides, SideKnativeNoToken)
}
