// SPDX-License-Identifier: Apache-2.0

// Package flood is the experiment `wangell-lab flood`: what clients notice of an attack on the gate.
package flood

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "flood",
		Question: "What do clients notice while the gate is under attack?",
		Help: `Flood attacks an instance of its own in network namespaces, with forged SYNs at a warm service, at
one cold service and at many, with clients that vanish, and with scans of the whole range of
service addresses. Genuine clients with a short and with a long round trip use the attacked
services and another one meanwhile. With --cluster, a warm service of each of Wangell, Knative (if
it is installed) and kube-proxy on that cluster is attacked too.`,
		Example: `  sudo wangell-lab flood --out out
  sudo wangell-lab flood --rate 300000 --time 20s --out out -o json
  sudo wangell-lab flood --cluster /var/tmp/wangell-cluster-lab/cluster.json --out out`,
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
