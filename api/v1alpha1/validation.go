// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FieldError is a mistake in one field.
type FieldError struct {
	// Field is the path of the field, such as "spec.env[2].name" or "spec.resources.limits[cpu]".
	Field string
	// Message says what is wrong.
	Message string
	// Fix says what to write instead.
	Fix string
}

// Error returns "field: message: fix".
func (e FieldError) Error() string { return e.Field + ": " + e.Message + ": " + e.Fix }

// ValidationErrors holds all mistakes in a manifest. It is empty if the manifest is valid.
type ValidationErrors []FieldError

// Error returns one line per error.
func (e ValidationErrors) Error() string {
	lines := make([]string, len(e))
	for i := range e {
		lines[i] = e[i].Error()
	}
	return strings.Join(lines, "\n")
}

func (e *ValidationErrors) add(p *field.Path, fix, message string, args ...any) {
	*e = append(*e, FieldError{Field: p.String(), Message: fmt.Sprintf(message, args...), Fix: fix})
}

// Paths that every validation uses, allocated once.
var (
	metadataPath  = field.NewPath("metadata")
	namePath      = metadataPath.Child("name")
	namespacePath = metadataPath.Child("namespace")
	specPath      = field.NewPath("spec")
)

// label checks a DNS-1123 label.
func (e *ValidationErrors) label(p *field.Path, value string) {
	if len(validation.IsDNS1123Label(value)) > 0 {
		e.add(p, "write "+fieldName(p)+": "+toLabel(value),
			"want a DNS label (RFC 1123: at most 63 of a-z, 0-9 and -, a letter or digit first and last), got %q", value)
	}
}

// toLabel turns text into a DNS label that a message can suggest.
func toLabel(s string) string {
	label := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z' || '0' <= r && r <= '9':
			return r
		case 'A' <= r && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '-'
		}
	}, s)
	label = strings.Trim(label[:min(len(label), validation.DNS1123LabelMaxLength)], "-")
	if label == "" {
		return "hello"
	}
	return label
}

// fieldName returns the last element of a path, with its index if it has one.
func fieldName(p *field.Path) string {
	s := p.String()
	return s[strings.LastIndexByte(s, '.')+1:]
}

// inRange checks a field of spec. Zero means that the field is left out.
func (e *ValidationErrors) inRange(name string, v int64) {
	if v == 0 {
		return
	}
	p := specPath.Child(name)
	e.pathInRange(p, v)
}

func (e *ValidationErrors) pathInRange(p *field.Path, v int64) {
	if r, ok := RangeOf(p.String()); ok && !r.Has(v) {
		e.add(p, fmt.Sprintf("write %s: %d", fieldName(p), r.Example), "want %s, got %d", r, v)
	}
}

// pointerInRange checks a number that may be left out.
func pointerInRange[T int32 | int64](e *ValidationErrors, p *field.Path, v *T) {
	if v != nil {
		e.pathInRange(p, int64(*v))
	}
}

// oneOf checks a word; empty means that the field is left out. A message suggests the word that differs only in case,
// or else the first one.
func (e *ValidationErrors) oneOf(p *field.Path, got string, words ...string) {
	if got == "" {
		return
	}
	for _, w := range words {
		if got == w {
			return
		}
	}
	offer := words[0]
	for _, w := range words {
		if strings.EqualFold(w, got) {
			offer = w
		}
	}
	e.add(p, "write "+fieldName(p)+": "+offer, "want %s, got %q", orList(words), got)
}

// orList returns "a, b or c".
func orList(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// noNUL checks words for execve(2), where a NUL ends a word.
func (e *ValidationErrors) noNUL(p *field.Path, words []string) {
	for i, w := range words {
		if strings.IndexByte(w, 0) >= 0 {
			e.add(p.Index(i), "remove it", `contains a NUL character (\0), which cannot be passed to a process`)
		}
	}
}

// absolute checks a path in a container or on the host and reports whether it is valid.
func (e *ValidationErrors) absolute(p *field.Path, file string) bool {
	switch {
	case strings.IndexByte(file, 0) >= 0:
		e.add(p, "remove it", `contains a NUL character (\0), which is not valid in a path`)
	case !path.IsAbs(file):
		e.add(p, fmt.Sprintf("write %s: %s", fieldName(p), path.Clean("/"+file)), "want an absolute path, got %q", file)
	case hasDotDot(file):
		e.add(p, fmt.Sprintf("write %s: %s", fieldName(p), path.Clean(file)), `contains "..", got %q`, file)
	default:
		return true
	}
	return false
}

func hasDotDot(file string) bool {
	for part := range strings.SplitSeq(file, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}
