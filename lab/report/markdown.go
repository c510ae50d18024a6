// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// textWidth is the width of paragraphs in Markdown, in characters.
const textWidth = 110

// Markdown returns the report as people read it.
func (r *Report) Markdown() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n", r.Title)
	if text := r.Answer.text(r.Summary); text != "" {
		b.WriteString(wrap(text, textWidth) + "\n\n")
	}
	fmt.Fprintf(&b, "![%s](%s.svg)\n\n", r.Title, r.Name)
	r.Answer.table(r.Summary).write(&b)
	fmt.Fprintf(&b, "\n## How it was measured\n\n%s\n", wrap(r.How, textWidth))
	for _, t := range r.Tables {
		fmt.Fprintf(&b, "\n## %s\n\n", t.Title)
		t.write(&b)
	}
	settings := Table{Header: []string{"setting", "value"}}
	for _, k := range slices.Sorted(maps.Keys(r.Params)) {
		settings.Rows = append(settings.Rows, []string{k, setting(r.Params[k])})
	}
	for _, k := range slices.Sorted(maps.Keys(r.Versions)) {
		settings.Rows = append(settings.Rows, []string{k, r.Versions[k]})
	}
	b.WriteString("\n## Settings and versions\n\n")
	settings.write(&b)
	fmt.Fprintf(&b, "\nMeasured %s. [%s.json](%s.json) has every sample; the plot is also available as [PNG](%s.png).\n",
		r.Time.UTC().Format("2006-01-02 15:04 MST"), r.Name, r.Name, r.Name)
	b.WriteString("\n## All values\n\n")
	r.Summary.table().write(&b)
	return b.Bytes()
}

// braced is the key of a value in a sentence.
var braced = regexp.MustCompile(`\{\w+\}`)

// text returns the sentences with the values of a summary.
func (a Answer) text(s Summary) string {
	var sentences []string
	for _, sentence := range a.Sentences {
		complete := true
		text := braced.ReplaceAllStringFunc(sentence, func(key string) string {
			key = strings.Trim(key, "{}")
			v := s.Get(key)
			complete = complete && !math.IsNaN(v)
			if unit := unitOf(key); unit != " ms" || math.Abs(v) < 10_000 {
				return short(v) + unit
			}
			return short(v/1000) + " s"
		})
		if complete {
			sentences = append(sentences, text)
		}
	}
	return strings.Join(sentences, " ")
}

// table returns the quoted values; the first of the summary if none of them was measured.
func (a Answer) table(s Summary) Table {
	t := Table{Header: []string{"", "value"}}
	for _, key := range a.Quoted {
		if i := slices.IndexFunc(s, func(v Value) bool { return v.Key == key }); i >= 0 {
			t.Rows = append(t.Rows, s[i:min(i+2, len(s))].table().Rows[0][:2])
		}
	}
	if len(t.Rows) == 0 {
		for _, row := range s.table().Rows {
			t.Rows = append(t.Rows, row[:2])
		}
	}
	t.Rows = t.Rows[:min(len(t.Rows), MaxQuoted)]
	return t
}

// short formats a number for a sentence: whole if it is a hundred or more, with commas; with one decimal from ten on,
// with two below, and with three below a hundredth.
func short(v float64) string {
	size := math.Abs(v)
	switch {
	case v == math.Trunc(v) || size >= 100:
		text := strconv.FormatFloat(size, 'f', 0, 64)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		if v < 0 && text != "0" {
			text = "-" + text
		}
		return text
	case size < 0.01:
		return strconv.FormatFloat(v, 'f', 3, 64)
	case size >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// table puts the summary into rows; an interval is one row.
func (s Summary) table() Table {
	t := Table{Header: []string{"", "value", "key"}}
	for i := 0; i < len(s); i++ {
		v := s[i]
		value, key := number(v.Value, v.Key), "`"+v.Key+"`"
		if v.Interval && i+1 < len(s) {
			i++
			if !math.IsNaN(v.Value) {
				value = strings.TrimSuffix(value, unitOf(v.Key)) + " to " + number(s[i].Value, s[i].Key)
			}
			key += ", `" + s[i].Key + "`"
		}
		t.Rows = append(t.Rows, []string{v.Meaning, value, key})
	}
	return t
}

// unitOf returns the unit that a key ends with, as it stands behind a number; "" if there is none.
func unitOf(key string) string {
	for _, unit := range []string{"ms", "us", "ns"} {
		if strings.HasSuffix(key, "_"+unit) {
			return " " + strings.Replace(unit, "us", "µs", 1)
		}
	}
	return ""
}

// number formats a value by its key: whole numbers without decimals, all others with two.
func number(v float64, key string) string {
	unit := unitOf(key)
	switch {
	case math.IsNaN(v):
		return "not measured"
	case unit == "" && v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64) + unit
}

// write writes the table in Markdown, padded so that the source is readable too.
func (t Table) write(b *bytes.Buffer) {
	widths := make([]int, len(t.Header))
	for _, row := range append([][]string{t.Header}, t.Rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(escape(cell)), 3)
		}
	}
	line := func(row []string) {
		for i, cell := range row {
			cell = escape(cell)
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
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

// wrap breaks text into lines of at most width characters.
func wrap(text string, width int) string {
	var b strings.Builder
	at := 0
	for _, word := range strings.Fields(text) {
		if at > 0 && at+1+utf8.RuneCountInString(word) > width {
			b.WriteByte('\n')
			at = 0
		} else if at > 0 {
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += utf8.RuneCountInString(word)
	}
	return b.String()
}

// Decimal formats a number with two decimals.
func Decimal(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// Whole formats a number without decimals.
func Whole(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }

// setting formats the value of a parameter. A report that is read from its JSON has a float64 for every number, and
// shows the same as one that has just been made.
func setting(v any) string {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}
