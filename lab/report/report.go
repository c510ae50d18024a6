// SPDX-License-Identifier: Apache-2.0

// Package report makes the reports of experiments: summaries, statistics, tables, plots, and the files of a report.
package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"
)

// Value is one number of a summary.
type Value struct {
	// Key is the name in JSON. It contains the unit ("median_ms", "fixed_mean_s_wangell") unless the number is a count.
	Key string
	// Value is the number. NaN, not measured, is null in JSON.
	Value float64
	// Meaning says in a few words what the number is.
	Meaning string
	// Interval is set on the lower bound of an interval; the next value of the summary is the upper bound. Markdown shows
	// both in one row, with the meaning of the lower one.
	Interval bool
}

// Summary is the outcome in reading order. In JSON it is one flat object.
type Summary []Value

// MarshalJSON implements json.Marshaler.
func (s Summary) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, v := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(v.Key) + ":")
		if math.IsNaN(v.Value) || math.IsInf(v.Value, 0) {
			b.WriteString("null")
		} else {
			b.WriteString(strconv.FormatFloat(round(v.Value), 'f', -1, 64))
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Get returns the value of a key, or NaN if there is none.
func (s Summary) Get(key string) float64 {
	for _, v := range s {
		if v.Key == key {
			return v.Value
		}
	}
	return math.NaN()
}

// Answer is what a reader who stops after it takes from a report.
type Answer struct {
	// Sentences are two. A key of the summary in braces stands for its value, rounded, and with its unit if that is
	// of time: "A request takes {median_ms}." A sentence with a value that was not measured is
	// left out.
	Sentences []string
	// Quoted are the keys of at most MaxQuoted values, or lower bounds of intervals, in the order in which they are shown.
	Quoted []string
}

// MaxQuoted is the most rows of the table that a report begins with.
const MaxQuoted = 10

// Table is a table of a report.
type Table struct {
	// Title is the heading above the table.
	Title string
	// Header and Rows are the cells. The first column is aligned to the left, all others to the right.
	Header []string
	Rows   [][]string
}

// Report is the outcome of an experiment.
type Report struct {
	// Name is the name of the files, without extension: lower case and hyphens.
	Name string `json:"name"`
	// Title is the headline.
	Title string `json:"title"`
	// Time is the end of the experiment.
	Time time.Time `json:"time"`
	// Summary is the outcome.
	Summary Summary `json:"summary"`
	// Answer is what the report says first.
	Answer Answer `json:"-"`
	// How describes the method, in one paragraph.
	How string `json:"how"`
	// Params are all settings that can change the outcome.
	Params map[string]any `json:"params"`
	// Versions are the versions of the programs and of the machine.
	Versions map[string]string `json:"versions"`
	// Tables stand below the plot.
	Tables []Table `json:"-"`
	// Raw is every sample.
	Raw any `json:"raw"`
	// Figure is the plot.
	Figure Figure `json:"-"`
}

// Saved is a report as its JSON file has it.
type Saved struct {
	Name     string            `json:"name"`
	Time     time.Time         `json:"time"`
	Summary  map[string]any    `json:"summary"`
	Params   map[string]any    `json:"params"`
	Versions map[string]string `json:"versions"`
	Raw      json.RawMessage   `json:"raw"`
}

// Load reads the JSON file of a report.
func Load(file string) (*Saved, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	s := &Saved{}
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read report %s: %w", file, err)
	}
	return s, nil
}

// Samples decodes the raw samples into a pointer.
func (s *Saved) Samples(into any) error {
	if err := json.Unmarshal(s.Raw, into); err != nil {
		return fmt.Errorf("report %s: its samples: %w", s.Name, err)
	}
	return nil
}

// Value returns a value of the summary, or NaN if there is none.
func (s *Saved) Value(key string) float64 {
	if v, ok := s.Summary[key].(float64); ok {
		return v
	}
	return math.NaN()
}

// Int returns a parameter that is a whole number, or 0 if there is none.
func (s *Saved) Int(param string) int {
	v, _ := s.Params[param].(float64)
	return int(v)
}

// String returns a parameter that is text, or "" if there is none.
func (s *Saved) String(param string) string {
	v, _ := s.Params[param].(string)
	return v
}

// Restore gives a report that was made again the time, the parameters and the versions of the saved one.
func (s *Saved) Restore(r *Report) *Report {
	r.Time, r.Params, r.Versions = s.Time, s.Params, s.Versions
	return r
}
