// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"wangell.loutres.me/test/vm/plan"
)

// result is what a VM reported.
type result struct {
	Release     string            `json:"release"` // in the name of the package
	Arch        string            `json:"arch"`
	Kernel      string            `json:"kernel"` // as the kernel says (uname -r)
	Cgroups     string            `json:"cgroups"`
	Versions    map[string]string `json:"versions"`
	BootSeconds float64           `json:"bootSeconds"`
	Seconds     float64           `json:"seconds"` // of the whole VM
	Checks      []plan.Event      `json:"checks"`
	Problem     string            `json:"problem,omitempty"` // of the VM itself
}

// versions joins the versions of programs.
func versions(all map[string]string) string {
	return strings.Join(slices.Collect(func(yield func(string) bool) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !yield(all[name]) {
				return
			}
		}
	}), ", ")
}

// report writes results.json into a folder, prints the results as a table and returns an error unless all is well.
func report(dir string, results []result) error {
	data, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "results.json")
	if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
		return err
	}
	text, passed, failed := table(results)
	// The last line is of the form that hack/gotest sums up.
	fmt.Printf("\n%s\n%s\n%d passed, %d failed\n", text, file, passed, failed)
	if failed > 0 {
		return errors.New("not everything passed")
	}
	return nil
}

// table returns a line for each check with a column for each VM, and how many checks and VMs passed and failed. A VM
// that did not get to its end counts as one failure more.
func table(results []result) (text string, passed, failed int) {
	var names []string
	width := len("check")
	for _, r := range results {
		for _, c := range r.Checks {
			if !slices.Contains(names, c.Check) {
				names = append(names, c.Check)
				width = max(width, len(c.Check))
			}
		}
	}
	var b strings.Builder
	row := func(name string, cell func(result) string) {
		fmt.Fprintf(&b, "%-*s", width, name)
		for _, r := range results {
			fmt.Fprintf(&b, "  %*s", max(len(r.Release), 12), cell(r))
		}
		b.WriteString("\n")
	}
	row("check", func(r result) string { return r.Release })
	row("boot", func(r result) string { return fmt.Sprintf("%.0f s", r.BootSeconds) })
	for _, name := range names {
		row(name, func(r result) string {
			i := slices.IndexFunc(r.Checks, func(e plan.Event) bool { return e.Check == name })
			switch {
			case i < 0:
				return "not run"
			case r.Checks[i].State == plan.Passed:
				passed++
				return fmt.Sprintf("ok %.0f s", r.Checks[i].Seconds)
			}
			failed++
			return "FAILED"
		})
	}
	row("all", func(r result) string {
		if r.Problem != "" {
			failed++
			return "FAILED"
		}
		return fmt.Sprintf("%.0f s", r.Seconds)
	})
	return b.String(), passed, failed
}
