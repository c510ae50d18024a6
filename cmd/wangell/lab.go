// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/lab"
	"wangell.loutres.me/internal/view"
)

func newLab(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Measure Wangell on this machine",
		Long: `Lab runs experiments in network namespaces of its own, with an instance of its own (lab
knative: in a cluster of test/cluster), and leaves nothing behind but a report:
DIR/NAME.json (raw samples, parameters, versions, summary), .md, .svg and .png.`,
		GroupID: groupMachine,
		Example: `  sudo wangell lab cold --out out
  sudo wangell lab scale --out out`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newLabCold(), newLabScale(), newLabKnative(), newLabScaling(), newLabBalance(), newLabFloor(g))
	return cmd
}

func newLabCold() *cobra.Command {
	var cfg lab.ColdConfig
	var dir string
	var out output
	cmd := &cobra.Command{
		Use:   "cold --out DIR",
		Short: "Measure cold requests against the floor",
		Long: `Cold measures requests to a service that sleeps, each from zero containers, in turn with
the floor: the time that the same runtime needs to start the same container until it
answers, with nothing of Wangell in the way. The difference is Wangell's overhead.`,
		Example: `  sudo wangell lab cold --out out
  sudo wangell lab cold --requests 100 --out out -o json
  sudo wangell lab cold --quick --image api.tar --tag local/api:v1 --port 8080 --out out`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case dir == "":
				return usage(cmd, "--out is missing: name the folder of the report")
			case cmd.Flags().Changed("requests") && cfg.Requests < 1:
				return usage(cmd, "--requests %d: want at least 1", cfg.Requests)
			case cfg.Image != "" && (cfg.Tag == "" || cfg.Port < 1 || cfg.Port > 65535):
				return usage(cmd, "--image needs --tag, the image's name, and --port, where it listens (1-65535)")
			}
			var clear func()
			cfg.Progress, clear = progress()
			defer clear()
			report, err := lab.Cold(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return finish(report, dir, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "out", "", "folder of the report (required)")
	f.IntVar(&cfg.Requests, "requests", 0, "how many cold requests (default 30, with --quick 5)")
	f.BoolVar(&cfg.Quick, "quick", false, "few requests: to see that it works, not to trust the numbers")
	f.StringVar(&cfg.Image, "image", "", "tarball of the image to measure (default: the hello image)")
	f.StringVar(&cfg.Tag, "tag", "", "name of the image in --image")
	f.Int32Var(&cfg.Port, "port", 0, "port on which --image answers GET /")
	out.register(f)
	return cmd
}

func newLabScale() *cobra.Command {
	var cfg lab.ScaleConfig
	var dir string
	var out output
	cmd := &cobra.Command{
		Use:   "scale --out DIR",
		Short: "Measure what sleeping services cost",
		Long: `Scale starts instances with more and more sleeping services, up to 10,000, and measures how
long the start takes, the memory of daemon and controller, and their use of the processor
while nothing happens. It makes one cold request to each.`,
		Example: `  sudo wangell lab scale --out out
  sudo wangell lab scale --services 2000 --idle 10s --out out -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case dir == "":
				return usage(cmd, "--out is missing: name the folder of the report")
			case cmd.Flags().Changed("services") && (cfg.Services < 1 || cfg.Services > 16000):
				return usage(cmd, "--services %d: want 1 to 16000", cfg.Services)
			}
			var clear func()
			cfg.Progress, clear = progress()
			defer clear()
			report, err := lab.Scale(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return finish(report, dir, out)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "out", "", "folder of the report (required)")
	f.IntVar(&cfg.Services, "services", 0, "largest number of services (default 10000, with --quick 200)")
	f.DurationVar(&cfg.Idle, "idle", 0, "how long the use of the processor is measured (default 30s, with --quick 2s)")
	f.BoolVar(&cfg.Quick, "quick", false, "few services: to see that it works, not to trust the numbers")
	out.register(f)
	return cmd
}

// progress shows how far an experiment is, on a terminal; the second function removes that.
func progress() (show func(done, total int), clear func()) {
	if !view.IsTerminal(os.Stderr) {
		return nil, func() {}
	}
	return func(done, total int) { fmt.Fprintf(os.Stderr, "\r%d of %d ", done, total) },
		func() { fmt.Fprint(os.Stderr, "\r\x1b[K") }
}

// finish writes the files of a report and prints its summary.
func finish(r *lab.Report, dir string, out output) error {
	if err := r.Write(dir); err != nil {
		return err
	}
	if out == outputJSON {
		return printJSON(r.Summary)
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	for _, v := range r.Summary {
		fmt.Fprintf(t, "%s\t%s\t%s\n", v.Key, strconv.FormatFloat(math.Round(v.Value*1000)/1000, 'f', -1, 64), v.Meaning)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Printf("\nreport: %s\n", filepath.Join(dir, r.Name+".{md,json,svg,png}"))
	return err
}

// newLabFloor is the process that an experiment starts to measure the floor, not a command for people.
func newLabFloor(g *globals) *cobra.Command {
	return &cobra.Command{
		Use:     "floor",
		Short:   "Measure the floor, as an experiment asks for on standard input",
		Example: `  wangell lab floor < requests.jsonl`,
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := g.logger(cmd, os.Stderr)
			if err != nil {
				return err
			}
			return lab.RunFloor(cmd.Context(), os.Stdin, os.Stdout, log)
		},
	}
}
