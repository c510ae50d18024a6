// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/view"
	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

// newExperiment is the command of an experiment, under its name or its former one.
func newExperiment(e lab.Experiment, name string) *cobra.Command {
	params := e.NewParams()
	var dir, format string
	var quiet bool
	cmd := &cobra.Command{
		Use:     name + " --out DIR",
		Short:   e.Question,
		Long:    e.Help,
		Example: e.Example,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := params.Check(cmd.Flags())
			switch {
			case dir == "":
				err = errors.New("--out is missing: name the folder of the report")
			case format != "table" && format != "json":
				err = fmt.Errorf("--output %q: want table or json", format)
			}
			if err != nil {
				return cli.UsageError{Command: cmd.CommandPath(), Err: err}
			}
			out, clear := output(quiet)
			reports, err := params.Run(cmd.Context(), out)
			clear()
			if err != nil {
				err = fmt.Errorf("%s: %w", e.Name, err)
			}
			if len(reports) == 0 {
				return err
			}
			return errors.Join(err, write(reports, dir, format))
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "out", "", "folder of the report (required)")
	f.StringVarP(&format, "output", "o", "table", "format of the summary: table or json")
	f.BoolVarP(&quiet, "quiet", "q", false, "do not print progress on standard error")
	params.Flags(f)
	_ = cmd.MarkFlagDirname("out")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, 0))
	return cmd
}

// output shows the progress of an experiment on standard error; clear removes what should not stay on a terminal.
func output(quiet bool) (out lab.Output, clear func()) {
	out = lab.Output{Progress: func(int, int) {}, Log: func(string, ...any) {}}
	if quiet {
		return out, func() {}
	}
	out.Log = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	if !view.IsTerminal(os.Stderr) {
		return out, func() {}
	}
	out.Progress = func(done, total int) { fmt.Fprintf(os.Stderr, "\r%d of %d ", done, total) }
	return out, func() { fmt.Fprint(os.Stderr, "\r\x1b[K") }
}

// write writes reports into a folder and prints the summary of the first one.
func write(reports []*report.Report, dir, format string) error {
	for _, r := range reports {
		if err := r.Write(dir); err != nil {
			return err
		}
	}
	first := reports[0]
	if format == "json" {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(first.Summary)
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
	for _, v := range first.Summary {
		value := strconv.FormatFloat(math.Round(v.Value*1000)/1000, 'f', -1, 64)
		fmt.Fprintf(t, "%s\t%s\t%s\n", v.Key, value, v.Meaning)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Printf("\nreport: %s\n", filepath.Join(dir, first.Name+".{md,json,svg,png}"))
	return err
}
