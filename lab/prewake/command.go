// SPDX-License-Identifier: Apache-2.0

// Package prewake is the experiment `wangell-lab prewake`: how many cold wakes spec.sleep.predict avoids, and what that
// costs.
package prewake

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "prewake",
		Question: "How many cold wakes does a forecast avoid, and how much memory does it take?",
		Help: `Prewake replays two weeks of uses of many services, and counts the cold wakes and the memory kept in
vain, with spec.sleep.predict and with fixed times of idleness alone. The uses are generated to the
published statistics of Azure Functions ("Serverless in the Wild", USENIX ATC 2020). The decisions are
those of the controller's own code. Nothing is started, and it needs no root.`,
		Example: `  wangell-lab prewake --out out
  wangell-lab prewake --services 500 --days 7 --seed 2 --out out -o json`,
		Reports:   []string{reportName},
		NewParams: func() lab.Params { return &Params{} },
		Render:    render,
	})
}

func render(saved *report.Saved) (*report.Report, error) {
	var samples Samples
	if err := saved.Samples(&samples); err != nil {
		return nil, err
	}
	return saved.Restore(newReport(samples)), nil
}
