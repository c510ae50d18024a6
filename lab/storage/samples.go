// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Latencies are times in milliseconds. In JSON they are one string, with spaces between, and TIME*N for N equal ones
// that follow each other.
type Latencies []float64

// MarshalText implements encoding.TextMarshaler. It keeps microseconds.
func (l Latencies) MarshalText() ([]byte, error) {
	var b []byte
	for i := 0; i < len(l); {
		v, n := toMicroseconds(l[i]), 1
		for i+n < len(l) && toMicroseconds(l[i+n]) == v {
			n++
		}
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendFloat(b, v, 'f', -1, 64)
		if n > 1 {
			b = strconv.AppendInt(append(b, '*'), int64(n), 10)
		}
		i += n
	}
	return b, nil
}

func toMicroseconds(ms float64) float64 { return math.Round(ms*1000) / 1000 }

// maxEqual is a bound of N, so that a damaged report does not fill the memory.
const maxEqual = 10_000_000

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Latencies) UnmarshalText(text []byte) error {
	*l = nil
	for _, word := range strings.Fields(string(text)) {
		value, count, repeated := strings.Cut(word, "*")
		v, err := strconv.ParseFloat(value, 64)
		n := 1
		if repeated && err == nil {
			n, err = strconv.Atoi(count)
		}
		if err == nil && (n < 1 || n > maxEqual) {
			err = fmt.Errorf("%d times is out of range", n)
		}
		if err != nil {
			return fmt.Errorf("latency %q, want TIME or TIME*N: %w", word, err)
		}
		for range n {
			*l = append(*l, v)
		}
	}
	return nil
}

// Operation sums up the operations of one kind in a run.
type Operation struct {
	Name string `json:"name"`
	// Latencies are the latencies of all operations, including failed ones.
	Latencies Latencies `json:"latencies_ms"`
	// Errors is the number of operations that failed.
	Errors int `json:"errors"`
	// Failures are messages of the client about them, with their numbers.
	Failures map[string]int `json:"failures,omitempty"`
	// Seconds is the time that they took together.
	Seconds float64 `json:"seconds"`
	// Bytes is the number of bytes that the client received, or wrote and read; 0: unknown.
	Bytes int64 `json:"bytes,omitempty"`
}

// JMeterLine is a line of JMeter's Aggregate Report. Times are in milliseconds.
type JMeterLine struct {
	Label      string  `json:"label"`
	Samples    int     `json:"samples"`
	Mean       float64 `json:"mean_ms"`
	Median     float64 `json:"median_ms"`
	P90        float64 `json:"p90_ms"`
	Min        float64 `json:"min_ms"`
	Max        float64 `json:"max_ms"`
	ErrorPct   float64 `json:"error_pct"`
	Throughput float64 `json:"throughput_s"`
	KBPerS     float64 `json:"kb_s"`
}

// Row is a device in one report of iostat, by the names of iostat's columns.
type Row struct {
	// At is the end of the interval, in seconds since the beginning of the run.
	At       float64 `json:"at_s"`
	Device   string  `json:"device"`
	Writes   float64 `json:"w/s"`
	WriteKB  float64 `json:"wkB/s"`
	Await    float64 `json:"w_await_ms"`
	Flushes  float64 `json:"f/s"`
	Util     float64 `json:"util_pct"`
	ReadKB   float64 `json:"rkB/s"`
	QueueLen float64 `json:"aqu-sz"`
}

// Machine is the load of the machine during a run.
type Machine struct {
	// Load is the load average of the last minute before the run.
	Load string `json:"load_before"`
	// BusyPct and IOWaitPct are shares of all processors' time.
	BusyPct   float64 `json:"cpu_busy_pct"`
	IOWaitPct float64 `json:"cpu_iowait_pct"`
	// CPUPressurePct and IOPressurePct are shares of time in which some task waited for processor or disk
	// (/proc/pressure), IOFullPct that in which all did.
	CPUPressurePct float64 `json:"cpu_pressure_some_pct"`
	IOPressurePct  float64 `json:"io_pressure_some_pct"`
	IOFullPct      float64 `json:"io_pressure_full_pct"`
	// DirtyMaxKB is the largest amount of dirty memory, in KiB (/proc/meminfo).
	DirtyMaxKB int64 `json:"dirty_max_kib"`
}

// Result is what clients did.
type Result struct {
	Operations []Operation `json:"operations,omitempty"`
	// JMeter are the lines of JMeter's Aggregate Report.
	JMeter []JMeterLine `json:"jmeter_aggregate,omitempty"`
}

// Run is one measurement.
type Run struct {
	Case       string  `json:"case"`
	Repetition int     `json:"repetition"`
	Order      int     `json:"order"` // among all runs
	Seconds    float64 `json:"seconds"`
	// Result is empty if Error is set.
	Result
	Iostat []Row `json:"iostat,omitempty"`
	// Header and Line are the line of iostat with the most writing, as iostat printed it.
	Header  string  `json:"iostat_header"`
	Line    string  `json:"iostat_line"`
	Machine Machine `json:"machine"`
	// Error is why there is no measurement.
	Error string `json:"error,omitempty"`
}

// Samples are the raw data of the report.
type Samples struct {
	Cases []Case `json:"cases"`
	Runs  []Run  `json:"runs"`
}

// of returns the runs of a test that were measured.
func (s Samples) of(key string) (runs []Run) {
	for _, r := range s.Runs {
		if r.Case == key && r.Error == "" {
			runs = append(runs, r)
		}
	}
	return runs
}

// latencies returns the latencies of the operations of a name, or of all if it is empty.
func (r Run) latencies(name string) (l []float64) {
	for _, o := range r.Operations {
		if name == "" || o.Name == name {
			l = append(l, o.Latencies...)
		}
	}
	return l
}

// without returns the samples without operations, or without the rows of iostat.
func (s Samples) without(operations, iostat bool) Samples {
	runs := slices.Clone(s.Runs)
	for i := range runs {
		if operations {
			runs[i].Result = Result{}
		}
		if iostat {
			runs[i].Iostat = nil
		}
	}
	return Samples{Cases: s.Cases, Runs: runs}
}
