// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// record appends a run to a file, one JSON document per line.
func record(file string, r recorded) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(f).Encode(r); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}

// load reads a file that record wrote.
func load(file string) (runs []recorded, err error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(content)) {
		var r recorded
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		runs = append(runs, r)
	}
	return runs, nil
}

// printSum prints a line for each recorded run and one for all of them, before that the failed tests and targets. It
// returns an error if something failed or, in CI, if a test was skipped that may not be.
func printSum(w io.Writer, file string, ci bool) error {
	runs, err := load(file)
	if err != nil {
		return err
	}
	all := totals{Label: "all"}
	var targets []string
	for _, r := range runs {
		if r.TargetFailed {
			targets = append(targets, r.Label)
			continue
		}
		fmt.Fprintln(w, r.totals)
		for _, test := range r.Failures {
			fmt.Fprintf(w, "  failed: %s\n", test)
		}
		all.Passed += r.Passed
		all.Failed += r.Failed
		all.Skipped += r.Skipped
		all.Allowed += r.Allowed
	}
	fmt.Fprintln(w, all)
	err = all.verdict(false, ci)
	if len(targets) > 0 {
		err = errors.Join(err, fmt.Errorf("failed targets: %s", strings.Join(targets, " ")))
	}
	return err
}

// printTable prints a Markdown table of the tests, and of the targets that are no tests, that failed in some of the
// runs: one file for each run. It returns an error if there is one.
func printTable(w io.Writer, files []string) error {
	failed := map[string]int{}
	bad := 0
	for _, file := range files {
		runs, err := load(file)
		if err != nil {
			return err
		}
		here := map[string]bool{}
		explained := map[string]bool{} // targets with a failed test
		for _, r := range runs {
			for _, test := range r.Failures {
				here[fmt.Sprintf("`%s`", test)] = true
				explained[r.Label] = true
			}
		}
		for _, r := range runs {
			if r.TargetFailed && !explained[r.Label] {
				here[fmt.Sprintf("`make %s`", r.Label)] = true
			}
		}
		for name := range here {
			failed[name]++
		}
		if len(here) > 0 {
			bad++
		}
	}
	fmt.Fprintf(w, "%d of %d runs passed.\n", len(files)-bad, len(files))
	if bad == 0 {
		return nil
	}
	fmt.Fprint(w, "\n| test | failed |\n|---|---|\n")
	for _, name := range slices.SortedFunc(maps.Keys(failed), func(a, b string) int {
		return cmp.Or(failed[b]-failed[a], strings.Compare(a, b))
	}) {
		fmt.Fprintf(w, "| %s | %d of %d |\n", name, failed[name], len(files))
	}
	return fmt.Errorf("failed runs: %d of %d", bad, len(files))
}
