// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"math"
	"strconv"
	"strings"

	"wangell.loutres.me/lab/report"
)

// aggregate is a line of a table as JMeter prints it.
type aggregate struct {
	samples, errors        int
	mean, median, p90      float64
	least, most            float64
	throughput, kilobytesS float64
}

// aggregateOf sums operations of several runs up.
func aggregateOf(ops []Operation) aggregate {
	a := aggregate{least: math.NaN(), most: math.NaN(), throughput: math.NaN(), kilobytesS: math.NaN()}
	var all []float64
	var seconds float64
	var bytes int64
	for _, o := range ops {
		all = append(all, o.Latencies...)
		a.errors += o.Errors
		seconds += o.Seconds
		bytes += o.Bytes
	}
	a.samples = len(all)
	a.mean, a.median, a.p90 = report.Mean(all), report.Median(all), report.Percentile(all, 90)
	a.least, a.most = report.Percentile(all, 0), report.Percentile(all, 100)
	if seconds > 0 {
		a.throughput = float64(len(all)) / seconds
	}
	if seconds > 0 && bytes > 0 {
		a.kilobytesS = float64(bytes) / 1024 / seconds
	}
	return a
}

func (a aggregate) errorPct() float64 {
	if a.samples == 0 {
		return math.NaN()
	}
	return 100 * float64(a.errors) / float64(a.samples)
}

func (a aggregate) row(test, operation string) []string {
	return []string{test, operation, strconv.Itoa(a.samples), report.Decimal(a.mean), report.Decimal(a.median),
		report.Decimal(a.p90), report.Decimal(a.least), report.Decimal(a.most), report.Decimal(a.errorPct()),
		report.Decimal(a.throughput), decimalOrNone(a.kilobytesS)}
}

// byOperation returns the operations of some runs by name, in order.
func byOperation(runs []Run) (names []string, ops map[string][]Operation) {
	ops = map[string][]Operation{}
	for _, r := range runs {
		for _, o := range r.Operations {
			if ops[o.Name] == nil {
				names = append(names, o.Name)
			}
			ops[o.Name] = append(ops[o.Name], o)
		}
	}
	return names, ops
}

// together returns one operation for each run, which joins the operations of a name, or all.
func together(runs []Run, name string) (out []Operation) {
	for _, r := range runs {
		sum := Operation{Latencies: r.latencies(name)}
		for _, o := range r.Operations {
			if name == "" || o.Name == name {
				sum.Errors += o.Errors
				sum.Bytes += o.Bytes
				sum.Seconds = max(sum.Seconds, o.Seconds) // operations of a run are at the same time
			}
		}
		out = append(out, sum)
	}
	return out
}

// mostWriting returns the most writing of a device that iostat saw in some runs, in kB/s.
func mostWriting(runs []Run) float64 { return maxOf(runs, "wkB/s") }

// maxOf returns the largest value of a column in the lines with the most writing of some runs.
func maxOf(runs []Run, column string) float64 {
	most := math.NaN()
	for _, r := range runs {
		columns, fields := strings.Fields(r.Header), strings.Fields(r.Line)
		for i, name := range columns {
			if name != column {
				continue
			}
			if v, err := strconv.ParseFloat(fields[i], 64); err == nil && !(v <= most) {
				most = v
			}
		}
	}
	return most
}

func decimalOrNone(v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return report.Decimal(v)
}
