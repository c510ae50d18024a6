// SPDX-License-Identifier: Apache-2.0

// Package balance is the experiment `wangell-lab balance`: how evenly requests reach pods.
package balance

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "balance",
		Question: "How evenly are requests spread over pods, by the way clients use connections?",
		Help: `Balance runs clients that use connections in several ways against a service of 5 pods,
behind kube-proxy (nftables), behind Wangell, behind Wangell with balancing.level: Request, and
behind Knative's Kourier if the cluster has it, and counts the requests and connections of each
pod. Some patterns are repeated with a server that works for each answer. The cluster must have
been started by test/cluster, with Wangell's chart and requests.enabled; test/knative installs
Knative. With --machine, it compares Wangell's two ways on this machine, without Kubernetes.`,
		Example: `  sudo wangell-lab balance --cluster /var/tmp/wangell-cluster-lab/cluster.json --out out
  sudo wangell-lab balance --machine --rounds 3 --time 12s --out out
  sudo wangell-lab balance --cluster cluster.json --quick --out out -o json
  sudo wangell-lab balance --cluster cluster.json --modes wangell,wangell_request \
    --patterns work_one_connection,work_pool_20 --rounds 5 --time 5s --out out`,
		Reports:   []string{reportName, machineName},
		NewParams: func() lab.Params { return &Params{} },
		Render:    render,
	})
}

func render(saved *report.Saved) (*report.Report, error) {
	var samples []Sample
	if err := saved.Samples(&samples); err != nil {
		return nil, err
	}
	return saved.Restore(newReport(samples, saved.Name == machineName)), nil
}
