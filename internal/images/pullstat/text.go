// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// letters stand for the phases of layers in the chart.
var letters = map[Phase]rune{
	Fetch: 'f', Wait: '·', Prepare: 'p', Decompress: 'd', Hash: 'h', Apply: 'a', Fsync: 's',
}

// WriteText writes the report for a terminal of a number of columns: a table of the layers, a chart of how their phases
// overlapped, and advice.
func WriteText(w io.Writer, r Report, columns int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, pulled through containerd %s (%s) on %d cores: %.2f s for %s packed, %s unpacked, %d files\n\n",
		r.Image, r.Containerd, r.through(), r.Cores, r.Pull, megabytes(r.Packed), megabytes(r.Unpacked), r.Files)
	writeTable(&b, r)
	b.WriteByte('\n')
	writeChart(&b, r, columns)
	b.WriteByte('\n')
	for _, a := range r.Advice {
		for i, line := range wrap(a.String(), max(columns, 60)-2) {
			b.WriteString([]string{"* ", "  "}[min(i, 1)] + line + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeTable(b *strings.Builder, r Report) {
	t := tabwriter.NewWriter(b, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "LAYER\tDIGEST\tPACKING\tPACKED\tUNPACKED\tFILES\t")
	for _, p := range LayerPhases {
		fmt.Fprintf(t, "%s\t", strings.ToUpper(string(p)))
	}
	fmt.Fprintln(t)
	for _, l := range r.Layers {
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%d\t", l.Number, shortDigest(l.Digest), l.Compression, megabytes(l.Packed),
			megabytes(l.Unpacked), l.Files)
		writeSeconds(t, l.Phases)
	}
	fmt.Fprintf(t, "whole\t\t\t%s\t%s\t%d\t", megabytes(r.Packed), megabytes(r.Unpacked), r.Files)
	writeSeconds(t, r.Phases)
	_ = t.Flush() // to a strings.Builder
	fmt.Fprintf(b, "Seconds. A layer's add up to the moment it was done. The whole's add up to the pull, with "+
		"%.2f resolve,\n%.2f finish and %.2f other; phases that ran at once share the time (on average %.1f ran).\n",
		r.Phases[Resolve], r.Phases[Finish], r.Phases[Other], r.Overlap)
}

func writeSeconds(w io.Writer, phases map[Phase]float64) {
	for _, p := range LayerPhases {
		fmt.Fprintf(w, "%.2f\t", phases[p])
	}
	fmt.Fprintln(w)
}

// writeChart draws a line for each layer. A character shows what took most of its share of the pull.
func writeChart(b *strings.Builder, r Report, columns int) {
	label := len(fmt.Sprint(len(r.Layers)))
	width := min(max(columns, 60), 160) - label - 2
	end := fmt.Sprintf("%.1f s", r.Pull)
	fmt.Fprintf(b, "%*s 0 s%*s\n", label, "", width-3, end)
	for _, l := range r.Layers {
		fmt.Fprintf(b, "%*d %s\n", label, l.Number, chartLine(l.Spans, r.Pull, width))
	}
	var legend []string
	for _, p := range LayerPhases {
		legend = append(legend, fmt.Sprintf("%c %s", letters[p], p))
	}
	fmt.Fprintf(b, "%s\n", strings.Join(legend, "  "))
	b.WriteString("d, h and a take turns: containerd reports their sum, a second pass over the layer the parts of it.\n")
}

// chartLine returns a line of a number of characters.
func chartLine(spans []Span, pull float64, width int) string {
	line := make([]rune, 0, width)
	for i := range width {
		begin, end := pull*float64(i)/float64(width), pull*float64(i+1)/float64(width)
		cell, most := ' ', 0.0
		for _, s := range spans {
			if covered := min(s.End, end) - max(s.Begin, begin); covered > most {
				cell, most = letters[s.Phase], covered
			}
		}
		line = append(line, cell)
	}
	return strings.TrimRight(string(line), " ")
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// shortDigest returns the first 12 digits of a digest.
func shortDigest(digest string) string {
	_, hex, _ := strings.Cut(digest, ":")
	return hex[:min(len(hex), 12)]
}

// wrap breaks a text into lines of at most a number of characters, unless a word is longer.
func wrap(text string, columns int) []string {
	var lines []string
	line := ""
	// No line begins with a percent sign.
	for word := range strings.SplitSeq(strings.ReplaceAll(text, " %", "\u00a0%"), " ") {
		if line != "" && len([]rune(line))+1+len([]rune(word)) > columns {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
