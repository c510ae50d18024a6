// SPDX-License-Identifier: Apache-2.0

// Package coldkube is the experiment `wangell-lab knative`: cold requests on Kubernetes, beside Knative and beside a
// pod made by hand.
package coldkube

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "knative",
		Question: "How long does a cold request take on Kubernetes, beside Knative and beside a pod made by hand?",
		Help: `Knative measures requests to services without any pod: Wangell's, Knative's, and the floor
(the same pod, made by hand), in turn, on one cluster with the same image. The cluster must
have been started by test/cluster, with Wangell's chart and Knative installed:

  go run -C test/cluster . up --nodes 1 --name lab
  go run -C test/knative . install --cluster .../cluster.json --scale-to-zero-grace-period 6s

The command fails if a request is lost.`,
		Example: `  sudo wangell-lab knative --cluster /var/tmp/wangell-cluster-lab/cluster.json --out out
  sudo wangell-lab knative --cluster /var/tmp/wangell-cluster-lab/cluster.json --quick --out out -o json
  sudo wangell-lab knative --cluster cluster.json --sides floor,knative --requests 10 --out out`,
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
