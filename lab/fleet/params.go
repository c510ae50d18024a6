// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Largest parameters: each daemon has an address of its own in a /16, and a session of the server.
const (
	maxDaemons  = 4000
	maxServices = 60_000
)

// Params configures the experiment.
type Params struct {
	// Daemons is the number of daemons, 2 to maxDaemons. Default: 250, or 20 if Quick.
	Daemons int
	// Services is the number of services, 1 to maxServices. Default: 10,000, or 200 if Quick.
	Services int
	// Rate is the number of wakes per second. Default: 1,000, or 100 if Quick.
	Rate int
	// Wakes is how long services are woken; each service is woken once. Default: 5 s, or 1 s if Quick.
	Wakes time.Duration
	// Idle is how long the idle fleet is measured. Default: 10 s, or 1 s if Quick.
	Idle time.Duration
	// Quick uses few daemons and services: enough to see that the experiment works, not to trust the numbers.
	Quick bool

	// controller is the command line of a controller process; nil for this program's own.
	controller []string
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.IntVar(&p.Daemons, "daemons", 0, "number of daemons (default 250, with --quick 20)")
	f.IntVar(&p.Services, "services", 0, "number of services (default 10000, with --quick 200)")
	f.IntVar(&p.Rate, "rate", 0, "wakes per second (default 1000, with --quick 100)")
	f.DurationVar(&p.Wakes, "wakes", 0, "how long services are woken (default 5s, with --quick 1s)")
	f.DurationVar(&p.Idle, "idle", 0, "how long the idle fleet is measured (default 10s, with --quick 1s)")
	f.BoolVar(&p.Quick, "quick", false, "few daemons and services: to see that it works, not to trust the numbers")
}

// Check implements lab.Params.
func (p *Params) Check(f *pflag.FlagSet) error {
	for _, n := range []struct {
		flag               string
		value, least, most int
	}{
		{"daemons", p.Daemons, 2, maxDaemons}, {"services", p.Services, 1, maxServices}, {"rate", p.Rate, 1, 100_000},
	} {
		if f.Changed(n.flag) && (n.value < n.least || n.value > n.most) {
			return fmt.Errorf("--%s %d: want %d to %d", n.flag, n.value, n.least, n.most)
		}
	}
	d := p.withDefaults()
	if d.Wakes < 0 || d.Idle < 0 {
		return errors.New("--wakes and --idle: want a positive duration")
	}
	if n := d.woken(); n < 1 || n > d.Services {
		return fmt.Errorf("--wakes %v at --rate %d: %d wakes, want 1 to %d, the number of services",
			d.Wakes, d.Rate, n, d.Services)
	}
	return nil
}

func (p Params) withDefaults() Params {
	daemons, services, rate, wakes, idle := 250, 10_000, 1000, 5*time.Second, 10*time.Second
	if p.Quick {
		daemons, services, rate, wakes, idle = 20, 200, 100, time.Second, time.Second
	}
	p.Daemons, p.Services, p.Rate = orDefault(p.Daemons, daemons), orDefault(p.Services, services), orDefault(p.Rate, rate)
	p.Wakes, p.Idle = orDefault(p.Wakes, wakes), orDefault(p.Idle, idle)
	return p
}

func orDefault[T int | time.Duration](value, def T) T {
	if value == 0 {
		return def
	}
	return value
}

// woken returns the number of services that are woken.
func (p Params) woken() int { return int(p.Wakes.Seconds() * float64(p.Rate)) }
