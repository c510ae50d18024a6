// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestSummaryIsOneFlatObjectInJSON(t *testing.T) {
	got, err := json.Marshal(Summary{{Key: "a_ms", Value: 1.23456}, {Key: "none_ms", Value: math.NaN()},
		{Key: "requests", Value: 30}})
	if err != nil || string(got) != `{"a_ms":1.235,"none_ms":null,"requests":30}` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestMarkdownShowsAnIntervalInOneRow(t *testing.T) {
	md := string((&Report{Name: "x", Summary: Summary{{Key: "low_ms", Value: -1, Meaning: "interval", Interval: true},
		{Key: "high_ms", Value: 2}, {Key: "n", Value: 3, Meaning: "count"}}}).Markdown())
	for _, want := range []string{"| interval | -1.00 to 2.00 ms | `low_ms`, `high_ms` |", "| count    |"} {
		if !strings.Contains(md, want) {
			t.Errorf("no %q in:\n%s", want, md)
		}
	}
}

func TestReportWithoutFigureIsNotWritten(t *testing.T) {
	if err := (&Report{Name: "x"}).Write(t.TempDir()); err == nil {
		t.Error("a report without a figure was written")
	}
}

func TestAnswerStandsBeforeTheFigure(t *testing.T) {
	r := &Report{Name: "x", Title: "T", Summary: Summary{
		{Key: "median_ms", Value: 12.345, Meaning: "median"}, {Key: "long_ms", Value: 18913.573, Meaning: "long"},
		{Key: "n", Value: 1234567, Meaning: "count"}, {Key: "none_ms", Value: math.NaN(), Meaning: "none"},
	}, Answer: Answer{
		Sentences: []string{"It takes {median_ms} or {long_ms}, {n} times.", "This is {none_ms}.", "This is {missing}."},
		Quoted:    []string{"n", "missing"},
	}}
	md := string(r.Markdown())
	want := "# T\n\nIt takes 12.3 ms or 18.9 s, 1,234,567 times.\n\n![T](x.svg)\n\n" +
		"|       |   value |\n|-------|--------:|\n| count | 1234567 |\n\n## How"
	if !strings.HasPrefix(md, want) {
		t.Errorf("got\n%s\nwant it to begin with\n%s", md, want)
	}
	if all := strings.Index(md, "## All values"); all < 0 || !strings.Contains(md[all:], "`median_ms`") {
		t.Errorf("the values with their keys are not at the end:\n%s", md)
	}
}

func TestFirstTableHasTenRowsAtMost(t *testing.T) {
	r := &Report{Name: "x"}
	for i := range 30 {
		r.Summary = append(r.Summary, Value{Key: fmt.Sprint("key", i), Value: 1, Meaning: "m"})
	}
	first, _, _ := strings.Cut(string(r.Markdown()), "## How")
	if n := strings.Count(first, "\n| m"); n != MaxQuoted {
		t.Errorf("%d rows, want %d", n, MaxQuoted)
	}
}

func TestNumbersInSentences(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.0012: "0.001", 0.25: "0.25", 5: "5", 5.678: "5.68", -12.34: "-12.3", 1234.5: "1,234", -1234.5: "-1,234",
	} {
		if got := short(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
}
