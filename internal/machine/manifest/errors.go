// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one mistake in one place.
type Error struct {
	// File is the file as the user named it, or "standard input".
	File string
	// Line and Column count from 1; 0 means unknown.
	Line, Column int
	// Field is the path of the field, such as "spec.env[2].name". It is empty if the error is about the whole text.
	Field string
	// Message says what is wrong. Fix says what to write instead; it may be empty.
	Message, Fix string
}

// Error returns "file:line:column: field: message: fix", without the parts that are unknown.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Column > 0 {
		fmt.Fprintf(&b, ":%d", e.Column)
	}
	for _, part := range []string{e.Field, e.Message, e.Fix} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	return b.String()
}

// maxErrors bounds how many errors one Load reports.
const maxErrors = 1000

// Errors holds the errors of one Load, sorted by file and line, at most 1000.
type Errors []*Error

// Error returns one line per error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap makes each *Error visible to errors.As.
func (e Errors) Unwrap() []error {
	all := make([]error, len(e))
	for i := range e {
		all[i] = e[i]
	}
	return all
}

func (e *Errors) add(err *Error) {
	if len(*e) < maxErrors {
		*e = append(*e, err)
	}
}

// concern reports whether an error is about a file, or about its folder. Beyond maxErrors, all files count as wrong.
func (e Errors) concern(file string) bool {
	return len(e) == maxErrors || slices.ContainsFunc(e, func(err *Error) bool {
		return err.File == file || strings.HasPrefix(file, strings.TrimSuffix(err.File, "/")+"/")
	})
}

// ByFile returns the errors of each file, in the order of files.
func (e Errors) ByFile() []Errors {
	var out []Errors
	for _, err := range e {
		if n := len(out) - 1; n >= 0 && out[n][0].File == err.File {
			out[n] = append(out[n], err)
		} else {
			out = append(out, Errors{err})
		}
	}
	return out
}

func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column), cmp.Compare(a.Field, b.Field))
	})
}
