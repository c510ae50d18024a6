// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/lab"
)

func newLabBalance() *cobra.Command {
	var cfg lab.BalanceConfig
	var dir string
	var out output
	var quiet bool
	cmd := &cobra.Command{
		Use:   "balance --cluster FILE --out DIR",
		Short: "Measure how evenly requests reach pods, against kube-proxy",
		Long: `Balance has clients that use connections in several ways ask a service of 5 pods, behind
kube-proxy (nftables) and behind Wangell, and counts the requests and connections of each
pod. The cluster is one that test/cluster has started, Wangell's chart installed.`,
		Example: `  sudo wangell lab balance --cluster /var/tmp/wangell-cluster-lab/cluster.json --out out
  sudo wangell lab balance --cluster cluster.json --quick --out out -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case dir == "":
				return usage(cmd, "--out is missing: name the folder of the report")
			case cfg.Cluster == "":
				return usage(cmd, "--cluster is missing: name the cluster.json of a cluster of test/cluster")
			}
			if !quiet {
				cfg.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
			}
			report, err := lab.Balance(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return finish(report, dir, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Cluster, "cluster", "", "cluster.json of a cluster of test/cluster (required)")
	f.StringVar(&dir, "out", "", "folder of the report (required)")
	f.BoolVar(&cfg.Quick, "quick", false, "everything short: to see that it works, not to trust the numbers")
	f.StringSliceVar(&cfg.Modes, "modes", nil, "what is measured (default all: "+strings.Join(lab.BalanceModes, ",")+")")
	f.DurationVar(&cfg.Time, "time", 0, "how long each pattern goes on (default 1m, with --quick 4s)")
	f.BoolVarP(&quiet, "quiet", "q", false, "do not tell each sample on standard error")
	out.register(f)
	return cmd
}
