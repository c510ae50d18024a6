// SPDX-License-Identifier: Apache-2.0

// Package cold is the experiment `wangell-lab cold`: cold requests on one machine against the floor.
package cold

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "cold",
		Question: "What does Wangell add to the start of a container?",
		Help: `Cold measures requests to a sleeping service, each from zero containers, alternating with
the floor: the time that the same runtime needs from starting the same container to its
first answer, without Wangell. The difference is Wangell's overhead.`,
		Example: `  sudo wangell-lab cold --out out
  sudo wangell-lab cold --requests 100 --out out -o json
  sudo wangell-lab cold --quick --image api.tar --tag local/api:v1 --port 8080 --out out`,
		Reports:   []string{reportName},
		NewParams: func() lab.Params { return &Params{} },
		Render:    render,
	})
}

func render(saved *report.Saved) (*report.Report, error) {
	var raw Samples
	if err := saved.Samples(&raw); err != nil {
		return nil, err
	}
	return saved.Restore(newReport(raw, uint64(saved.Value("syn_retransmits")))), nil
}
