// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Value is a number of a summary.
type Value struct {
	// Key is its name in JSON; it ends with the unit ("median_ms") unless it is a count.
	Key string
	// Value is the number; NaN (not measured) is null in JSON.
	Value float64
	// Meaning says in a few words what it is.
	Meaning string
}

// Summary is what came out, in the order in which to read it. In JSON it is one flat object.
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

// Get returns a value by its key; NaN if there is none.
func (s Summary) Get(key string) float64 {
	for _, v := range s {
		if v.Key == key {
			return v.Value
		}
	}
	return math.NaN()
}

// round leaves three decimals: microseconds of a time in milliseconds.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// Table is a table of a report.
type Table struct {
	// Title stands above it.
	Title string
	// Header and Rows are its cells; all but the first column are numbers, and set to the right.
	Header []string
	Rows   [][]string
}

// Report is the outcome of an experiment.
type Report struct {
	// Name is the name of its files, without ending: lower case and hyphens.
	Name string `json:"name"`
	// Title is its headline.
	Title string `json:"title"`
	// Time is when the experiment ended.
	Time time.Time `json:"time"`
	// Summary is what came out.
	Summary Summary `json:"summary"`
	// How says how it was measured: plain sentences, one paragraph.
	How string `json:"how"`
	// Params are all settings that can change the outcome.
	Params map[string]any `json:"params"`
	// Versions are those of the programs and the machine.
	Versions map[string]string `json:"versions"`
	// Tables are shown below the plot.
	Tables []Table `json:"-"`
	// Raw is every sample.
	Raw any `json:"raw"`
	// Figure is the plot.
	Figure Figure `json:"-"`
}

// Write writes dir/NAME.json, .md, .svg and .png, and makes dir if there is none.
func (r *Report) Write(dir string) error {
	if r.Name == "" || r.Figure == nil {
		return errors.New("write report: it needs a name and a figure")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write report %s: %w", r.Name, err)
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write report %s: %w", r.Name, err)
	}
	svg, png, err := render(r.Figure)
	if err != nil {
		return fmt.Errorf("write report %s: draw the figure: %w", r.Name, err)
	}
	for ending, content := range map[string][]byte{".json": append(data, '\n'), ".md": r.markdown(), ".svg": svg, ".png": png} {
		if err := os.WriteFile(filepath.Join(dir, r.Name+ending), content, 0o644); err != nil {
			return fmt.Errorf("write report %s: %w", r.Name, err)
		}
	}
	return nil
}

// markdown writes the report for people.
func (r *Report) markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n", r.Title)
	summary := Table{Header: []string{"", "value", "key"}}
	for _, v := range r.Summary {
		summary.Rows = append(summary.Rows, []string{v.Meaning, number(v.Value, v.Key), "`" + v.Key + "`"})
	}
	summary.write(&b)
	fmt.Fprintf(&b, "\n![%s](%s.svg)\n\n## How it was measured\n\n%s\n", r.Title, r.Name, wrap(r.How, 110))
	for _, t := range r.Tables {
		fmt.Fprintf(&b, "\n## %s\n\n", t.Title)
		t.write(&b)
	}
	settings := Table{Header: []string{"setting", "value"}}
	for _, k := range sortedKeys(r.Params) {
		settings.Rows = append(settings.Rows, []string{k, fmt.Sprint(r.Params[k])})
	}
	for _, k := range sortedKeys(r.Versions) {
		settings.Rows = append(settings.Rows, []string{k, r.Versions[k]})
	}
	b.WriteString("\n## Settings and versions\n\n")
	settings.write(&b)
	fmt.Fprintf(&b, "\nMeasured %s. Every sample is in [%s.json](%s.json); the plot is also there as [PNG](%s.png).\n",
		r.Time.UTC().Format("2006-01-02 15:04 MST"), r.Name, r.Name, r.Name)
	return b.Bytes()
}

// number shows a value as its key asks: counts whole, times with two decimals.
func number(v float64, key string) string {
	unit := ""
	for _, u := range []string{"ms", "us", "ns"} {
		if strings.HasSuffix(key, "_"+u) {
			unit = " " + strings.Replace(u, "us", "µs", 1)
		}
	}
	switch {
	case math.IsNaN(v):
		return "not measured"
	case unit == "" && v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64) + unit
}

// write writes the table in Markdown, with columns that are even also as text.
func (t Table) write(b *bytes.Buffer) {
	widths := make([]int, len(t.Header))
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], columns(escape(cell)), 3)
		}
	}
	line := func(row []string) {
		for i, cell := range row {
			cell = escape(cell)
			pad := strings.Repeat(" ", widths[i]-columns(cell))
			if i == 0 {
				cell += pad
			} else {
				cell = pad + cell
			}
			b.WriteString("| " + cell + " ")
		}
		b.WriteString("|\n")
	}
	line(t.Header)
	for i, w := range widths {
		if i == 0 {
			b.WriteString("|" + strings.Repeat("-", w+2))
		} else {
			b.WriteString("|" + strings.Repeat("-", w+1) + ":")
		}
	}
	b.WriteString("|\n")
	for _, row := range t.Rows {
		line(row)
	}
}

func escape(cell string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(cell)
}

func columns(s string) int { return len([]rune(s)) }

// wrap breaks text into lines of at most n characters.
func wrap(text string, n int) string {
	var b strings.Builder
	at := 0
	for _, word := range strings.Fields(text) {
		if at > 0 && at+1+columns(word) > n {
			b.WriteByte('\n')
			at = 0
		} else if at > 0 {
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += columns(word)
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
