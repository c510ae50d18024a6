// SPDX-License-Identifier: Apache-2.0

// Package scaling is the experiment `wangell-lab scaling`: balancing and scaling, beside kube-proxy.
package scaling

import (
	"fmt"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "scaling",
		Question: "What do kube-proxy and Wangell cost, and lose, while services scale?",
		Help: `Scaling measures kube-proxy in its modes iptables and nftables and Wangell side by side. The
cluster must have several nodes and must have been started by test/cluster, with Wangell's chart
installed. The parts are:

  fixed        the time of a fixed load against 3 pods
  rates        short connections per second, and requests per second on persistent ones
  replicas     the time of a fixed load against 1 to 6 pods, and autoscaled
  alternating  heavy and light load in turn, autoscaled from 3 pods to 1 and back: what breaks off
  flap         requests lost while pods are scaled, restarted and deleted

It switches the mode of kube-proxy, and restores it at the end.`,
		Example: `  sudo wangell-lab scaling --cluster /var/tmp/wangell-cluster-lab/cluster.json --out out
  sudo wangell-lab scaling --cluster cluster.json --quick --out out -o json
  sudo wangell-lab scaling --cluster cluster.json --parts flap --cases scale_ab,scale_wrk --flap-time 10m --out out`,
		Reports:   []string{reportName, ratesName, replicasName, alternatingName, flapName},
		NewParams: func() lab.Params { return &Params{} },
		Render:    render,
	})
}

// render makes one of the reports again.
func render(saved *report.Saved) (*report.Report, error) {
	var samples Samples
	parts := map[string]any{reportName: &samples, ratesName: &samples.Rates, replicasName: &samples.Replicas,
		alternatingName: &samples.Alternating, flapName: &samples.Flap}
	if err := saved.Samples(parts[saved.Name]); err != nil {
		return nil, err
	}
	for _, r := range newReports(planOf(samples, saved.Int(paramRequests)), samples) {
		if r.Name == saved.Name {
			return saved.Restore(r), nil
		}
	}
	return nil, fmt.Errorf("report %s: it has no samples", saved.Name)
}
