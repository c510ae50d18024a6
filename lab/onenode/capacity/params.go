// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"wangell.loutres.me/lab/onenode"
)

// maxServices is the largest number of services; serviceRange has addresses for 16,382.
const maxServices = 16000

// Params configures the experiment.
type Params struct {
	// Wangell is the program to measure. Default: see onenode.FindWangell.
	Wangell string
	// Services is the largest number of sleeping services, 1 to maxServices. Default: 10,000, or 200 if Quick.
	Services int
	// Idle is how long the processor use is measured. Default: 30 s, or 2 s if Quick.
	Idle time.Duration
	// Quick uses few services: enough to see that the experiment works, not to trust the numbers.
	Quick bool
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Wangell, "wangell", "", "program to measure (default: the wangell beside this program, or in $PATH)")
	f.IntVar(&p.Services, "services", 0, "largest number of services (default 10000, with --quick 200)")
	f.DurationVar(&p.Idle, "idle", 0, "how long the processor use is measured (default 30s, with --quick 2s)")
	f.BoolVar(&p.Quick, "quick", false, "few services: to see that it works, not to trust the numbers")
}

// Check implements lab.Params.
func (p *Params) Check(f *pflag.FlagSet) error {
	if p.Services < 0 || p.Services > maxServices || f.Changed("services") && p.Services == 0 {
		return fmt.Errorf("--services %d: want 1 to %d", p.Services, maxServices)
	}
	return nil
}

func (p Params) withDefaults() (Params, error) {
	services, idle := 10000, 30*time.Second
	if p.Quick {
		services, idle = 200, 2*time.Second
	}
	if p.Services == 0 {
		p.Services = services
	}
	if p.Idle == 0 {
		p.Idle = idle
	}
	if p.Wangell == "" {
		var err error
		if p.Wangell, err = onenode.FindWangell(); err != nil {
			return p, err
		}
	}
	return p, nil
}

// sizes returns the numbers of services that are measured.
func (p Params) sizes() []int {
	var out []int
	for _, n := range []int{1, p.Services / 10, p.Services / 4, p.Services / 2, p.Services} {
		if n > 0 && (len(out) == 0 || n > out[len(out)-1]) {
			out = append(out, n)
		}
	}
	return out
}
