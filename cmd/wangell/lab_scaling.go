// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/lab"
)

func newLabScaling() *cobra.Command {
	var cfg lab.ScalingConfig
	var dir string
	var out output
	var quiet bool
	cmd := &cobra.Command{
		Use:   "scaling --cluster FILE --out DIR",
		Short: "Measure balancing and scaling on Kubernetes against kube-proxy",
		Long: `Scaling measures kube-proxy in its modes iptables and nftables and Wangell side by side on a
cluster of several nodes that test/cluster has started, Wangell's chart installed:

  fixed        the time of a fixed load against 3 pods
  rates        short connections, and requests on kept connections, in a second
  replicas     the time of a fixed load against 1 to 6 pods, and autoscaled
  alternating  much and little load by turns, autoscaled: what breaks off
  flap         requests lost while pods are scaled, restarted and deleted

It switches the mode of kube-proxy, and back at the end.`,
		Example: `  sudo wangell lab scaling --cluster /var/tmp/wangell-cluster-lab/cluster.json --out out
  sudo wangell lab scaling --cluster cluster.json --quick --out out -o json
  sudo wangell lab scaling --cluster cluster.json --parts flap --cases scale_ab,scale_wrk --flap-time 10m --out out`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case dir == "":
				return usage(cmd, "--out is missing: name the folder of the reports")
			case cfg.Cluster == "":
				return usage(cmd, "--cluster is missing: name the cluster.json of a cluster of test/cluster")
			}
			if !quiet {
				cfg.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
			}
			reports, err := lab.Scaling(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			for _, r := range reports[1:] {
				if err := r.Write(dir); err != nil {
					return err
				}
			}
			return finish(reports[0], dir, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Cluster, "cluster", "", "cluster.json of a cluster of test/cluster (required)")
	f.StringVar(&dir, "out", "", "folder of the reports (required)")
	f.BoolVar(&cfg.Quick, "quick", false, "everything small: to see that it works, not to trust the numbers")
	f.StringSliceVar(&cfg.Modes, "modes", nil, "what is measured (default all: "+strings.Join(lab.ScalingModes, ",")+")")
	f.StringSliceVar(&cfg.Parts, "parts", nil, "which parts (default all: "+strings.Join(lab.ScalingParts, ",")+")")
	f.StringSliceVar(&cfg.Cases, "cases", nil, "which cases of flap (default all, with --quick three: "+strings.Join(lab.FlapCaseKeys(), ",")+")")
	f.StringVar(&cfg.Clients, "clients", lab.VantagePods, "where clients are: pods of the first node, or the host on the lan; rates has both")
	f.IntVar(&cfg.Requests, "requests", 0, "how many a run of ab makes (default 500000, with --quick 4000)")
	f.IntVar(&cfg.Repetitions, "repetitions", 0, "how often each is repeated (default 10, with --quick 2)")
	f.DurationVar(&cfg.Interval, "interval", 0, "of the autoscaler, and of disturbances (default 10s, with --quick 1s)")
	f.DurationVar(&cfg.FlapTime, "flap-time", 0, "how long each disturbance goes on (default 1m, with --quick 4s)")
	f.BoolVarP(&quiet, "quiet", "q", false, "do not tell each sample on standard error")
	out.register(f)
	return cmd
}
