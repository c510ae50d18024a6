// SPDX-License-Identifier: Apache-2.0

// Package strangers is the experiment `wangell-lab strangers`: what daemons notice while strangers flood the
// controller's port.
package strangers

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "strangers",
		Question: "What do daemons notice while strangers flood the controller's port?",
		Help: `Strangers runs one controller and many daemons, the wire's client over a simulated gate, in network
namespaces of their own. Services are woken at an even rate, for a time in which nothing else happens
and for a time in which strangers flood the controller's UDP port: in turn, several times. Their
datagrams have forged sources: HELLOs that name nodes which are connected and others, datagrams of
sessions that do not exist, and what belongs to no protocol.`,
		Example: `  sudo wangell-lab strangers --out out
  sudo wangell-lab strangers --rate 300000 --rounds 4 --out out -o json`,
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
