// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/lab/cluster"
)

// replicas is the number of pods.
const replicas = 5

// Params configures the experiment.
type Params struct {
	// Cluster is the cluster.json of a cluster started by test/cluster, with Wangell's chart unless Modes omits Wangell.
	Cluster string
	// Quick makes everything short: enough to see that the experiment works, not to trust the numbers.
	Quick bool
	// Modes are the measured ones of AllModes. Default: all.
	Modes []string
	// Time is how long each pattern lasts. Default: 1 min, or 4 s if Quick.
	Time time.Duration
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Cluster, "cluster", "", cluster.FlagUsage)
	f.BoolVar(&p.Quick, "quick", false, "everything short: to see that it works, not to trust the numbers")
	f.StringSliceVar(&p.Modes, "modes", nil, "what is measured (default all: "+strings.Join(AllModes, ",")+")")
	f.DurationVar(&p.Time, "time", 0, "duration of each pattern (default 1m, with --quick 4s)")
}

// Check implements lab.Params.
func (p *Params) Check(*pflag.FlagSet) error {
	if p.Time < 0 {
		return fmt.Errorf("--time %v is negative", p.Time)
	}
	for _, mode := range p.Modes {
		if !slices.Contains(AllModes, mode) {
			return fmt.Errorf("--modes: there is no %q, only %s", mode, strings.Join(AllModes, ", "))
		}
	}
	return cluster.CheckFlag(p.Cluster)
}

func (p Params) withDefaults() Params {
	switch {
	case p.Time == 0 && p.Quick:
		p.Time = 4 * time.Second
	case p.Time == 0:
		p.Time = time.Minute
	}
	if len(p.Modes) == 0 {
		p.Modes = AllModes
	}
	return p
}
