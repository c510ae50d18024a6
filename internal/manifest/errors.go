// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one thing that is wrong in one place.
type Error struct {
	// File is the file as the user named it, or "standard input".
	File string
	// Line and Column begin at 1; 0 is "not known".
	Line, Column int
	// Field is the path of the field, such as "spec.env[2].name"; empty where the text as a whole is meant.
	Field string
	// Message says what is wrong, Fix what to write instead (it may be empty).
	Message, Fix string
}

// Error is "file:line:column: field: message: fix", without the parts that are not known.
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

// maxErrors bounds what one Load collects: more than this nobody reads.
const maxErrors = 1000

// Errors is everything that is wrong with what was loaded, sorted by file and line; at most 1000.
type Errors []*Error

// Error has one line an error.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.As find an *Error.
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

func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column), cmp.Compare(a.Field, b.Field))
	})
}
