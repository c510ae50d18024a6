// SPDX-License-Identifier: Apache-2.0

package prewake

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"
)

// Params configures the experiment.
type Params struct {
	// Services is the number of services, 10 to 100,000. Default: 2,000, or 100 if Quick.
	Services int
	// Days is the time that is replayed, 1 to 60. Default: 14, or 2 if Quick.
	Days int
	// Seed is the seed of the random numbers. Default: 1.
	Seed uint64
	// Quick replays little: enough to see that the experiment works, not to trust the numbers.
	Quick bool
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.IntVar(&p.Services, "services", 0, "number of services (default 2000, with --quick 100)")
	f.IntVar(&p.Days, "days", 0, "days that are replayed (default 14, with --quick 2)")
	f.Uint64Var(&p.Seed, "seed", 0, "seed of the random numbers (default 1)")
	f.BoolVar(&p.Quick, "quick", false, "few services and days: to see that it works, not to trust the numbers")
}

// Check implements lab.Params.
func (p *Params) Check(*pflag.FlagSet) error {
	d := p.withDefaults()
	if d.Services < 10 || d.Services > 100_000 {
		return fmt.Errorf("--services %d: want 10 to 100000", d.Services)
	}
	if d.Days < 1 || d.Days > 60 {
		return fmt.Errorf("--days %d: want 1 to 60", d.Days)
	}
	return nil
}

func (p Params) withDefaults() Params {
	services, days := 2000, 14
	if p.Quick {
		services, days = 100, 2
	}
	p.Services, p.Days, p.Seed = cmp.Or(p.Services, services), cmp.Or(p.Days, days), cmp.Or(p.Seed, 1)
	return p
}
