// SPDX-License-Identifier: Apache-2.0

package strangers

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Largest parameters.
const (
	maxDaemons = 1000
	maxRate    = 1_000_000
	maxTime    = 2 * time.Minute
	maxRounds  = 10
	maxWakes   = 500
)

// Params configures the experiment.
type Params struct {
	// Daemons is the number of daemons, 2 to maxDaemons. Default: 50, or 10 if Quick.
	Daemons int
	// Rate is the number of strangers' datagrams per second, 1 to maxRate. Default: 200,000, or 20,000 if Quick.
	Rate int
	// Time is how long each flood, and each part without one, lasts: at most maxTime. Default: 30 s, or 1 s if Quick.
	Time time.Duration
	// Rounds is how often there is one of both, 1 to maxRounds. Default: 2, or 1 if Quick.
	Rounds int
	// Wakes is the number of wakes per second, 1 to maxWakes. Default: 20.
	Wakes int
	// Quick makes a short flood: enough to see that the experiment works, not to trust the numbers.
	Quick bool

	// controller and daemons are the command lines of the processes; nil for this program's own.
	controller, daemons []string
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.IntVar(&p.Daemons, "daemons", 0, "number of daemons (default 50, with --quick 10)")
	f.IntVar(&p.Rate, "rate", 0, "strangers' datagrams per second (default 200000, with --quick 20000)")
	f.DurationVar(&p.Time, "time", 0, "how long each part, with or without a flood, lasts (default 30s, with --quick 1s)")
	f.IntVar(&p.Rounds, "rounds", 0, "how often there is one of both (default 2, with --quick 1)")
	f.IntVar(&p.Wakes, "wakes", 0, "wakes per second (default 20)")
	f.BoolVar(&p.Quick, "quick", false, "a short flood: to see that it works, not to trust the numbers")
}

// Check implements lab.Params.
func (p *Params) Check(f *pflag.FlagSet) error {
	for _, n := range []struct {
		flag               string
		value, least, most int
	}{
		{"daemons", p.Daemons, 2, maxDaemons}, {"rate", p.Rate, 1, maxRate}, {"rounds", p.Rounds, 1, maxRounds},
		{"wakes", p.Wakes, 1, maxWakes},
	} {
		if f.Changed(n.flag) && (n.value < n.least || n.value > n.most) {
			return fmt.Errorf("--%s %d: want %d to %d", n.flag, n.value, n.least, n.most)
		}
	}
	if f.Changed("time") && (p.Time <= 0 || p.Time > maxTime) {
		return fmt.Errorf("--time %v: want more than 0 and at most %v", p.Time, maxTime)
	}
	d := p.withDefaults()
	if n := d.services(); d.part() < 1 || n > maxServices {
		return fmt.Errorf("--wakes %d for --time %v, %d times: %d services, want 2 to %d", d.Wakes, d.Time, 2*d.Rounds, n,
			maxServices)
	}
	return nil
}

// maxServices limits the services: each is woken once, and daemons know all of them.
const maxServices = 20_000

func (p Params) withDefaults() Params {
	daemons, rate, duration, rounds := 50, 200_000, 30*time.Second, 2
	if p.Quick {
		daemons, rate, duration, rounds = 10, 20_000, time.Second, 1
	}
	p.Daemons, p.Rate = orDefault(p.Daemons, daemons), orDefault(p.Rate, rate)
	p.Time, p.Rounds = orDefault(p.Time, duration), orDefault(p.Rounds, rounds)
	p.Wakes = orDefault(p.Wakes, 20)
	return p
}

func orDefault[T int | time.Duration](value, def T) T {
	if value == 0 {
		return def
	}
	return value
}

// part is the number of services that are woken in each part.
func (p Params) part() int { return int(p.Time.Seconds() * float64(p.Wakes)) }

// services is the number of services of all parts.
func (p Params) services() int { return 2 * p.Rounds * p.part() }
