// SPDX-License-Identifier: Apache-2.0

// Package fleet is the experiment `wangell-lab fleet`: what a large cluster costs the controller and the wire.
package fleet

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "fleet",
		Question: "How long until all nodes are up to date, and what does it cost?",
		Help: `Fleet runs one controller, in a process of its own, and many daemons: the wire's client over a
simulated gate. Pods start at once. All daemons join together, then many services are woken each
second, then the leader is killed and another one takes over. Everything is on loopback of this
machine, and needs no root.`,
		Example: `  wangell-lab fleet --out out
  wangell-lab fleet --daemons 100 --services 2000 --rate 500 --out out -o json`,
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
