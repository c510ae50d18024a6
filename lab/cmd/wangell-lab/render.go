// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/report"
)

func newRender() *cobra.Command {
	return &cobra.Command{
		Use:   "render REPORT.json...",
		Short: "Regenerate reports from their JSON",
		Long: `Render reads the samples of reports and writes all their files again, in place, with the
summary, the texts and the figure of this version of the program. It measures nothing.`,
		Example: `  wangell-lab render docs/experiments/cold.json`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, files []string) error {
			for _, file := range files {
				r, err := render(file)
				if err != nil {
					return err
				}
				if err := r.Write(filepath.Dir(file)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// render makes the report of a JSON file again.
func render(file string) (*report.Report, error) {
	saved, err := report.Load(file)
	if err != nil {
		return nil, err
	}
	e, err := lab.ByReport(saved.Name)
	if err != nil {
		return nil, err
	}
	return e.Render(saved)
}
