// SPDX-License-Identifier: Apache-2.0

// Package capacity is the experiment `wangell-lab capacity`: what sleeping services cost on one machine.
package capacity

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "capacity",
		Question: "What do ten thousand sleeping services cost?",
		Help: `Capacity starts instances with more and more sleeping services, up to 10,000. It measures the
time to start, the memory of daemon and controller, and their processor use while idle, and
makes one cold request to each instance.`,
		Example: `  sudo wangell-lab capacity --out out
  sudo wangell-lab capacity --services 2000 --idle 10s --out out -o json`,
		Deprecated: "scale",
		Reports:    []string{reportName},
		NewParams:  func() lab.Params { return &Params{} },
		Render:     render,
	})
}

func render(saved *report.Saved) (*report.Report, error) {
	var samples []Sample
	if err := saved.Samples(&samples); err != nil {
		return nil, err
	}
	return saved.Restore(newReport(samples)), nil
}
