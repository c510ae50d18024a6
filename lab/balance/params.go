// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab/cluster"
)

// Params configures the experiment.
type Params struct {
	// Cluster is the cluster.json of a cluster started by test/cluster, with Wangell's chart unless Modes omits Wangell.
	// Empty with Machine.
	Cluster string
	// Machine measures on this machine, without Kubernetes, with the modes machineModes.
	Machine bool
	// Wangell is the program that runs on this machine. Default: see onenode.FindWangell.
	Wangell string
	// Envoy is the path of Envoy on this machine. Default: see envoytest.Find.
	Envoy string
	// Quick makes everything short: enough to see that the experiment works, not to trust the numbers.
	Quick bool
	// Modes are the measured ones of AllModes. Default: all, without Knative if the cluster has none.
	Modes []string
	// Patterns are the keys of the measured Patterns, with the prefix "work_" for a server that works for each answer.
	// Default: all; with work, those in workPatterns.
	Patterns []string
	// Rounds is how often everything is measured. Default: 1.
	Rounds int
	// Time is how long each pattern lasts in each round. Default: 1 min, or 4 s if Quick.
	Time time.Duration

	chosenModes bool // Modes are not the default
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Cluster, "cluster", "", cluster.FlagUsage)
	f.BoolVar(&p.Machine, "machine", false,
		"measure on this machine, without Kubernetes: "+strings.Join(machineModes, ","))
	f.StringVar(&p.Wangell, "wangell", "", "program to measure with --machine (default: the wangell beside this program, "+
		"or in $PATH)")
	f.StringVar(&p.Envoy, "envoy", "", "Envoy for --machine (default: the one in $PATH, or a Python wheel's)")
	f.BoolVar(&p.Quick, "quick", false, "everything short: to see that it works, not to trust the numbers")
	f.StringSliceVar(&p.Modes, "modes", nil, "what is measured (default all: "+strings.Join(AllModes, ",")+")")
	f.StringSliceVar(&p.Patterns, "patterns", nil, "how clients use connections; with the prefix "+workPrefix+
		", of a server that works for each answer (default all: "+strings.Join(allPatterns(), ",")+")")
	f.IntVar(&p.Rounds, "rounds", 1, "how often everything is measured")
	f.DurationVar(&p.Time, "time", 0, "duration of each pattern in each round (default 1m, with --quick 4s)")
}

// Check implements lab.Params.
func (p *Params) Check(*pflag.FlagSet) error {
	if p.Time < 0 {
		return fmt.Errorf("--time %v is negative", p.Time)
	}
	if p.Rounds < 0 {
		return fmt.Errorf("--rounds %d is negative", p.Rounds)
	}
	for _, key := range p.Patterns {
		if !slices.ContainsFunc(Patterns, func(p Pattern) bool { return p.Key == strings.TrimPrefix(key, workPrefix) }) {
			return fmt.Errorf("--patterns: there is no %q, only %s", key, strings.Join(allPatterns(), ", "))
		}
	}
	for _, mode := range p.Modes {
		if all := p.allModes(); !slices.Contains(all, mode) {
			return fmt.Errorf("--modes: there is no %q, only %s", mode, strings.Join(all, ", "))
		}
	}
	switch {
	case !p.Machine && (p.Wangell != "" || p.Envoy != ""):
		return errors.New("--wangell and --envoy are for --machine")
	case p.Machine && p.Cluster != "":
		return errors.New("--cluster and --machine exclude each other")
	case p.Machine:
		return nil
	}
	return cluster.CheckFlag(p.Cluster)
}

// allModes are the modes that can be measured.
func (p Params) allModes() []string {
	if p.Machine {
		return machineModes
	}
	return AllModes
}

func (p Params) withDefaults() Params {
	switch {
	case p.Time == 0 && p.Quick:
		p.Time = 4 * time.Second
	case p.Time == 0:
		p.Time = time.Minute
	}
	p.chosenModes = len(p.Modes) > 0
	if !p.chosenModes {
		p.Modes = p.allModes()
	}
	if len(p.Patterns) == 0 {
		p.Patterns = allPatterns()
	}
	p.Rounds = max(1, p.Rounds)
	return p
}

// workPrefix is what the keys of patterns begin with when the server works for each answer.
const workPrefix = "work_"

// allPatterns are the keys of the patterns that are measured by default.
func allPatterns() (keys []string) {
	for _, p := range Patterns {
		keys = append(keys, p.Key)
	}
	for _, key := range workPatterns {
		keys = append(keys, workPrefix+key)
	}
	return keys
}

// selected returns the patterns whose keys, with the prefix, are among those to measure.
func (p Params) selected(prefix string) []Pattern {
	return slices.DeleteFunc(slices.Clone(Patterns), func(of Pattern) bool {
		return !slices.Contains(p.Patterns, prefix+of.Key)
	})
}
