// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

var marks = map[State]string{OK: "✓", Warn: "!", Missing: "✗", Skipped: "?"}

// WriteTable prints checks as a table with a heading per group.
func WriteTable(w io.Writer, checks []Check) error {
	var b bytes.Buffer
	for len(checks) > 0 {
		group := checks[0].Group
		n := slices.IndexFunc(checks, func(c Check) bool { return c.Group != group })
		if n < 0 {
			n = len(checks)
		}
		fmt.Fprintln(&b, strings.ToUpper(string(group)))
		writeGroup(&b, checks[:n])
		checks = checks[n:]
	}
	_, err := b.WriteTo(w)
	return err
}

// writeGroup prints the checks of a group in columns, and what to do on a line below the check.
func writeGroup(b *bytes.Buffer, checks []Check) {
	var columns bytes.Buffer
	t := tabwriter.NewWriter(&columns, 0, 4, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(t, "  %s %s\t%s\t%s\n", marks[c.State], c.Name, oneLine(c.Found), c.For)
	}
	_ = t.Flush() // a buffer never fails
	for i, line := range slices.Collect(strings.Lines(columns.String())) {
		b.WriteString(line)
		if c := checks[i]; c.State != OK && c.Do != "" {
			fmt.Fprintf(b, "    → %s\n", c.Do)
		}
	}
}

// Summary says in one line whether everything required was found.
func Summary(checks []Check) string {
	bad := Bad(checks)
	if len(bad) == 0 {
		return "everything required was found"
	}
	names := make([]string, len(bad))
	for i, c := range bad {
		names[i] = c.Name
	}
	noun := "checks"
	if len(bad) == 1 {
		noun = "check"
	}
	return fmt.Sprintf("%d required %s failed: %s", len(bad), noun, strings.Join(names, ", "))
}

// Line returns a failed check on one line, for the error of a program that cannot start because of it.
func (c Check) Line() string {
	line := fmt.Sprintf("%s: %s (for %s)", c.Name, oneLine(c.Found), c.For)
	if c.Do != "" {
		line += ": " + c.Do
	}
	return line
}

// oneLine shortens text, which may be the log of the verifier, to one line.
func oneLine(s string) string {
	const most = 160
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
