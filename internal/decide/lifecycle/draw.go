// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// minBar is the minimum width of the bars, in columns.
const minBar = 10

// Draw writes a waterfall as text: a line about the wake, then one line per phase with the time since the SYN at its
// end, its duration, and a bar that covers it, then the time axis. Lines are at most width columns wide, unless the
// text and bars of minBar columns need more.
func Draw(w io.Writer, f Waterfall, width int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  wake %d  %s", f.Service, f.Number, f.Result)
	if at, ok := f.At(PhaseReady); ok {
		fmt.Fprintf(&b, "  ready after %s", ms(at))
	} else if at, ok := f.At(PhaseListening); ok {
		fmt.Fprintf(&b, "  listens after %s", ms(at))
	}
	if f.Parked > 0 || f.Released > 0 {
		fmt.Fprintf(&b, "  %d parked, %d released", max(f.Parked, f.Released), f.Released)
	}
	if !f.Start.IsZero() {
		fmt.Fprintf(&b, "  %s", f.Start.UTC().Format("2006-01-02T15:04:05.000Z"))
	}
	b.WriteByte('\n')
	if f.Reason != "" {
		fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(f.Reason, "\n", "\n  "))
	}

	var rows [][3]string
	var cols [3]int
	for _, p := range f.Phases {
		row := [3]string{string(p.Name), decimals(p.At), "+" + decimals(p.Took)}
		for i, s := range row {
			cols[i] = max(cols[i], len(s))
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		_, err := io.WriteString(w, b.String())
		return err
	}
	left := 2 + cols[0] + 2 + cols[1] + 2 + cols[2] + 2
	bars := max(width-left, minBar)
	total := max(f.Total(), time.Microsecond)
	for i, p := range f.Phases {
		line := fmt.Sprintf("  %-*s  %*s  %*s  %s", cols[0], rows[i][0], cols[1], rows[i][1], cols[2], rows[i][2],
			bar(p.At-p.Took, p.At, total, bars))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	fmt.Fprintf(&b, "  %-*s  %*s  %*s  %s\n", cols[0], "", cols[1], "ms", cols[2], "ms", axis(total, bars))
	_, err := io.WriteString(w, b.String())
	return err
}

// decimals writes a duration in milliseconds, without the unit.
func decimals(d time.Duration) string { return strings.TrimSuffix(ms(d), " ms") }

// eighths are the parts of a column, filled from the left.
var eighths = [...]string{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"}

// bar draws [from, to] of [0, total] on cols columns. Its end is precise to an eighth of a column, its start to a half:
// no finer character is filled from the right. It is never empty.
func bar(from, to, total time.Duration, cols int) string {
	units := int64(cols) * 8
	start, end := int64(from)*units/int64(total), int64(to)*units/int64(total)
	start = min(start/4*4, units-8)
	if end <= start {
		end = start + 1
	}
	b := strings.Repeat(" ", int(start/8))
	if start%8 != 0 {
		if end-start <= 4 {
			return b + "▐"
		}
		b += "▐"
		start += 4
	}
	b += strings.Repeat("█", int((end-start)/8))
	return b + eighths[(end-start)%8]
}

// axis draws tick marks at round times below the bars.
func axis(total time.Duration, cols int) string {
	step := time.Microsecond
	for factor := 0; ; factor++ {
		// 1, 2, 5, 10, ...: the first step that leaves room for the labels.
		if labels := int(total/step) + 1; labels*8 <= cols || labels <= 2 {
			break
		}
		if factor%3 == 1 {
			step = step / 2 * 5
		} else {
			step *= 2
		}
	}
	line := []byte(strings.Repeat(" ", cols))
	for at := time.Duration(0); at <= total; at += step {
		label := fmt.Sprintf("|%g", float64(at.Microseconds())/1000)
		pos := int(int64(at) * int64(cols) / int64(total))
		if pos+len(label) <= cols {
			copy(line[pos:], label)
		}
	}
	return strings.TrimRight(string(line), " ")
}
