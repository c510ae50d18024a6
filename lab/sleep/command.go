// SPDX-License-Identifier: Apache-2.0

// Package sleep is the experiment `wangell-lab sleep`: how fast services answer that are asleep in one way or another,
// and what each way costs.
package sleep

import (
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func init() {
	lab.Register(lab.Experiment{
		Name:     "sleep",
		Question: "How fast does a service answer that is frozen, prepared or cold, and what does it keep?",
		Help: `Sleep runs the same programs warm, frozen, frozen with their memory given back (to zram, which it
sets up), prepared and cold, on one machine and in turn, and measures the time to the first byte and
the memory that each keeps. Then it freezes many pods at once: their memory and processor use, and the
time to thaw one among all others, or a hundred at once. Then it keeps connections open while
services freeze and thaw, and looks for what is lost or left. With --cluster, it also asks the hello
image on that cluster, warm, frozen, reclaimed and cold, and as a Knative service if the cluster has
Knative. The cluster must have Wangell's chart with daemon.freezing.enabled.`,
		Example: `  sudo wangell-lab sleep --out out
  sudo wangell-lab sleep --apps hello,redis --rounds 50 --sleepers 0 --freezes 0 --out out
  sudo wangell-lab sleep --parts cluster --cluster /var/tmp/wangell-cluster-lab/cluster.json --out out
  sudo wangell-lab sleep --apps hello --freezes 10000 --flap 30m --out out -o json`,
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
