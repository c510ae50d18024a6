// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
)

// slow is how long a test runs before it gets a line of its own, so that a long package shows progress; for a subtest
// it is slowPart.
const (
	slow     = 10 * time.Second
	slowPart = 20 * time.Second
)

// event is a line of "go test -json"; see "go doc test2json" and, for the build actions, "go help buildjson".
type event struct {
	Action     string
	Package    string
	ImportPath string // in place of Package when the action is about a build
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// report turns events into lines for a person. It is used by one goroutine.
type report struct {
	w       io.Writer
	allowed *regexp.Regexp // reasons that CI accepts; nil for none
	output  map[string]*strings.Builder
	counts  map[string]*totals // by package
	skips   []string
	// failures are the failed tests, as "PACKAGE: TEST", without those of which only a subtest failed.
	failures []string
}

func newReport(w io.Writer, allowed *regexp.Regexp) *report {
	return &report{w: w, allowed: allowed, output: map[string]*strings.Builder{}, counts: map[string]*totals{}}
}

// read reads events until the stream ends. Other lines, such as a program's own output, are passed on.
func (r *report) read(stream io.Reader) {
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.event(e)
			} else {
				fmt.Fprintf(r.w, "%s", line)
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *report) event(e event) {
	key := e.Package + " " + e.Test
	count := r.counts[e.Package]
	if count == nil {
		count = &totals{}
		r.counts[e.Package] = count
	}
	elapsed := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "output":
		if r.output[key] == nil {
			r.output[key] = &strings.Builder{}
		}
		r.output[key].WriteString(e.Output)
	case "pass":
		if e.Test == "" {
			r.packageEnded("ok  ", e.Package, elapsed)
			break
		}
		count.Passed++
		if elapsed >= slowPart || elapsed >= slow && !strings.Contains(e.Test, "/") {
			fmt.Fprintf(r.w, "     %s: %s (%s)\n", e.Package, e.Test, elapsed)
		}
	case "skip":
		if e.Test == "" {
			break // the package has no tests
		}
		count.Skipped++
		r.skipped(count, e.Package, e.Test, r.written(key))
	case "fail":
		if e.Test == "" {
			r.failedPackage(key, e.Package, count, elapsed)
			break
		}
		count.Failed++
		name := e.Package + ": " + e.Test
		if !slices.ContainsFunc(r.failures, func(f string) bool { return strings.HasPrefix(f, name+"/") }) {
			r.failures = append(r.failures, name)
		}
		fmt.Fprintf(r.w, "FAIL %s: %s (%s)\n%s", e.Package, e.Test, elapsed, indent(r.written(key)))
	}
	if e.Action == "pass" || e.Action == "skip" || e.Action == "fail" {
		delete(r.output, key)
	}
}

// written returns the output of a test so far.
func (r *report) written(key string) string {
	if out := r.output[key]; out != nil {
		return out.String()
	}
	return ""
}

// failedPackage prints what the package itself wrote if none of its tests explains the failure: it did not build, its
// TestMain failed, or it crashed. That counts as one failed test.
func (r *report) failedPackage(key, pkg string, count *totals, elapsed time.Duration) {
	if count.Failed == 0 {
		count.Failed++
		r.failures = append(r.failures, pkg+": the whole package")
	}
	if out := r.output[key]; out != nil {
		fmt.Fprint(r.w, indent(out.String()))
	}
	// A test that was running when the process ended has no result of its own.
	for k, out := range r.output {
		if k != key && strings.HasPrefix(k, pkg+" ") {
			fmt.Fprintf(r.w, "unfinished: %s\n%s", k, indent(out.String()))
			delete(r.output, k)
		}
	}
	r.packageEnded("FAIL", pkg, elapsed)
}

func (r *report) packageEnded(verdict, pkg string, elapsed time.Duration) {
	count := r.counts[pkg]
	if verdict == "ok  " && count.Passed+count.Failed+count.Skipped == 0 {
		count.Skipped++
		r.skipped(count, pkg, "the whole package", "no test ran")
	}
	fmt.Fprintf(r.w, "%s %-52s %8s  %d passed", verdict, pkg, elapsed, count.Passed)
	for _, n := range []struct {
		count int
		what  string
	}{{count.Failed, "failed"}, {count.Skipped, "skipped"}} {
		if n.count > 0 {
			fmt.Fprintf(r.w, ", %d %s", n.count, n.what)
		}
	}
	fmt.Fprintln(r.w)
}

// skipped records a skipped test for the end of the report. The reason is the last line that the test logged.
func (r *report) skipped(count *totals, pkg, test, output string) {
	reason := ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "--- ") && !strings.HasPrefix(line, "=== ") {
			reason = line
		}
	}
	verdict := ""
	if r.allowed != nil && r.allowed.MatchString(reason) {
		count.Allowed++
		verdict = " (CI accepts this)"
	}
	r.skips = append(r.skips, fmt.Sprintf("skipped: %s: %s: %s%s", pkg, test, reason, verdict))
}

// close prints the skipped tests and the closing line, and returns the run's totals.
func (r *report) close(label string) totals {
	t := totals{Label: label}
	for _, c := range r.counts {
		t.Passed += c.Passed
		t.Failed += c.Failed
		t.Skipped += c.Skipped
		t.Allowed += c.Allowed
	}
	for _, s := range r.skips {
		fmt.Fprintln(r.w, s)
	}
	fmt.Fprintln(r.w, t)
	return t
}

func indent(text string) string {
	if text == "" {
		return ""
	}
	return "    " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n    ") + "\n"
}
