// SPDX-License-Identifier: Apache-2.0

package report

import (
	"encoding/json"
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
