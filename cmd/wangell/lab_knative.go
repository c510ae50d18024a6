// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/lab"
)

func newLabKnative() *cobra.Command {
	var cfg lab.KnativeConfig
	var dir string
	var out output
	cmd := &cobra.Command{
		Use:   "knative --cluster FILE --out DIR",
		Short: "Measure cold requests on Kubernetes against Knative",
		Long: `Knative measures requests to a service without any pod: Wangell's, Knative's, and the floor
(the same pod, made by hand), in turn, on one cluster with the same image. The cluster is
one that test/cluster has started; Wangell's chart and Knative are installed in it before:

  go run -C test/cluster . up --nodes 1 --name lab
  go run -C test/knative . install --cluster .../cluster.json --scale-to-zero-grace-period 6s

It fails if a request is lost.`,
		Example: `  sudo wangell lab knative --cluster /var/tmp/wangell-cluster-lab/cluster.json --out out
  sudo wangell lab knative --cluster /var/tmp/wangell-cluster-lab/cluster.json --quick --out out -o json
  sudo wangell lab knative --cluster cluster.json --sides floor,knative --requests 10 --out out`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case dir == "":
				return usage(cmd, "--out is missing: name the folder of the report")
			case cfg.Cluster == "":
				return usage(cmd, "--cluster is missing: name the cluster.json of a cluster of test/cluster")
			case cmd.Flags().Changed("requests") && cfg.Requests < 1:
				return usage(cmd, "--requests %d: want at least 1", cfg.Requests)
			}
			var clear func()
			cfg.Progress, clear = progress()
			defer clear()
			report, err := lab.Knative(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if err := finish(report, dir, out); err != nil {
				return err
			}
			if lost := report.Summary.Get("lost"); lost > 0 {
				return fmt.Errorf("lab knative: %.0f requests were lost: see their errors in %s/%s.json", lost, dir, report.Name)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Cluster, "cluster", "", "cluster.json of a cluster of test/cluster (required)")
	f.StringVar(&dir, "out", "", "folder of the report (required)")
	f.IntVar(&cfg.Requests, "requests", 0, "how many cold requests to each side (default 30, with --quick 3)")
	f.BoolVar(&cfg.Quick, "quick", false, "few requests: to see that it works, not to trust the numbers")
	f.StringSliceVar(&cfg.Sides, "sides", nil, "who is measured (default all: "+strings.Join(lab.KnativeSides, ",")+")")
	f.Uint64Var(&cfg.Seed, "seed", 1, "seed of the random pauses")
	out.register(f)
	return cmd
}
