// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// stream is what go test -json writes of a package with one test of each kind, one that does not build and one in
// which no test runs.
const stream = `{"Action":"start","Package":"a"}
{"Action":"output","Package":"a","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"a","Test":"TestGood/long","Elapsed":20}
{"Action":"pass","Package":"a","Test":"TestGood/short","Elapsed":12}
{"Action":"pass","Package":"a","Test":"TestGood","Elapsed":12}
{"Action":"output","Package":"a","Test":"TestBad","Output":"    a_test.go:3: it is broken\n"}
{"Action":"fail","Package":"a","Test":"TestBad","Elapsed":0.1}
{"Action":"output","Package":"a","Test":"TestAway","Output":"    a_test.go:9: needs root\n"}
{"Action":"output","Package":"a","Test":"TestAway","Output":"--- SKIP: TestAway (0.00s)\n"}
{"Action":"skip","Package":"a","Test":"TestAway","Elapsed":0}
{"Action":"output","Package":"a","Test":"TestChild","Output":"    a_test.go:9: only run by TestGood\n"}
{"Action":"skip","Package":"a","Test":"TestChild","Elapsed":0}
{"Action":"fail","Package":"a","Elapsed":13}
{"ImportPath":"b","Action":"build-output","Output":"b.go:1:1: syntax error\n"}
{"ImportPath":"b","Action":"build-fail"}
{"Action":"output","Package":"b","Output":"FAIL b [build failed]\n"}
{"Action":"fail","Package":"b","Elapsed":0}
this line is no event
{"Action":"pass","Package":"c","Elapsed":0}
`

func TestReportShowsFailuresSkipsAndTotals(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, regexp.MustCompile("only run by"))
	r.read(strings.NewReader(stream))
	got := r.close("unit")
	if want := (totals{Label: "unit", Passed: 3, Failed: 2, Skipped: 3, Allowed: 1}); got != want {
		t.Errorf("totals %+v, want %+v", got, want)
	}
	for _, want := range []string{
		"a: TestGood (12s)", "a: TestGood/long (20s)", "it is broken", "b.go:1:1: syntax error", "[build failed]",
		"this line is no event",
		"skipped: a: TestAway: a_test.go:9: needs root\n", "only run by TestGood (CI accepts this)",
		"skipped: c: the whole package: no test ran",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
	const closing = "unit: 3 passed, 2 failed, 3 skipped (1 for a reason that CI accepts)\n"
	if text := out.String(); strings.Contains(text, "noise") || strings.Contains(text, "short") ||
		!strings.HasSuffix(text, closing) {
		t.Errorf("output of a test that passed, a short part of one, or another closing line:\n%s", &out)
	}
}

func TestRunFailsOnFailuresAndInCIOnSkips(t *testing.T) {
	for name, c := range map[string]struct {
		t            totals
		goFailed, ci bool
		want         string
	}{
		"passed":                     {t: totals{Passed: 3}, ci: true},
		"failed":                     {t: totals{Passed: 3, Failed: 1}, want: "failed tests: 1"},
		"go test failed":             {t: totals{Passed: 3}, goFailed: true, want: "go test failed"},
		"skipped at home":            {t: totals{Passed: 3, Skipped: 1}},
		"skipped in CI":              {t: totals{Passed: 3, Skipped: 2, Allowed: 1}, ci: true, want: "does not accept: 1"},
		"skipped in CI with a right": {t: totals{Passed: 3, Skipped: 1, Allowed: 1}, ci: true},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.t.verdict(c.goFailed, c.ci)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestFailuresAreNamedByTheirInnermostTest(t *testing.T) {
	r := newReport(io.Discard, nil)
	r.read(strings.NewReader(`{"Action":"fail","Package":"a","Test":"TestBad/one/two"}
{"Action":"fail","Package":"a","Test":"TestBad/one"}
{"Action":"fail","Package":"a","Test":"TestBad"}
{"Action":"fail","Package":"a","Test":"TestBadToo"}
{"Action":"fail","Package":"a"}
{"Action":"fail","Package":"b"}
`))
	want := []string{"a: TestBad/one/two", "a: TestBadToo", "b: the whole package"}
	if !slices.Equal(r.failures, want) {
		t.Errorf("failures %q, want %q", r.failures, want)
	}
}

// recordAll writes runs into a file.
func recordAll(t *testing.T, runs ...recorded) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "totals")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, run := range runs {
		if err := record(file, run); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func TestSumAddsUpRecordedRuns(t *testing.T) {
	unit := recorded{totals: totals{Label: "unit", Passed: 3, Skipped: 1}}
	gate := recorded{totals: totals{Label: "gate", Passed: 4}}
	file := recordAll(t, unit, gate)
	var out bytes.Buffer
	err := printSum(&out, file, false)
	if err != nil || !strings.HasSuffix(out.String(), "all: 7 passed, 0 failed, 1 skipped\n") {
		t.Errorf("%v:\n%s", err, &out)
	}
	if err := printSum(&out, file, true); err == nil {
		t.Error("a skipped test passed in CI")
	}
	// Each failure is named.
	gate.Failed, gate.Failures = 1, []string{"a: TestBad"}
	lint := recorded{totals: totals{Label: "lint"}, TargetFailed: true}
	out.Reset()
	err = printSum(&out, recordAll(t, unit, lint, gate), false)
	if err == nil || !strings.Contains(err.Error(), "failed targets: lint") ||
		!strings.Contains(out.String(), "failed: a: TestBad\n") {
		t.Errorf("%v:\n%s", err, &out)
	}
}

func TestTableCountsTheRunsInWhichATestFailed(t *testing.T) {
	good := recorded{totals: totals{Label: "gate", Passed: 4}}
	bad := recorded{totals: totals{Label: "gate", Failed: 1}, Failures: []string{"a: TestBad"}}
	lint := recorded{totals: totals{Label: "lint"}, TargetFailed: true}
	gate := recorded{totals: totals{Label: "gate"}, TargetFailed: true}
	var out bytes.Buffer
	if err := printTable(&out, []string{recordAll(t, good), recordAll(t, good)}); err != nil {
		t.Error(err)
	}
	three := []string{recordAll(t, good), recordAll(t, bad, gate), recordAll(t, bad, bad, lint)}
	if err := printTable(&out, three); err == nil {
		t.Error("no error")
	}
	const want = "2 of 2 runs passed.\n1 of 3 runs passed.\n\n| test | failed |\n|---|---|\n" +
		"| `a: TestBad` | 2 of 3 |\n| `make lint` | 1 of 3 |\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

func TestArgumentsKeepTheFolderFirst(t *testing.T) {
	const want = "test -C test/cluster -json -short ./..."
	if got := strings.Join(testArgs([]string{"-C", "test/cluster", "-short", "./..."}), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
