// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// FieldError says what is wrong with one field.
type FieldError struct {
	// Field is the path of the field: "spec.env[2].name", "spec.resources.limits[cpu]".
	Field string
	// Message says what is wrong with it.
	Message string
	// Fix says what to write instead.
	Fix string
}

// Error is field, message and fix in one line.
func (e FieldError) Error() string { return e.Field + ": " + e.Message + ": " + e.Fix }

// ValidationErrors is everything that is wrong with a manifest; empty if it is right.
type ValidationErrors []FieldError

// Error has one line an error.
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

// Paths that are used for every service, made once.
var (
	metadataPath  = field.NewPath("metadata")
	namePath      = metadataPath.Child("name")
	namespacePath = metadataPath.Child("namespace")
	specPath      = field.NewPath("spec")
)

// Validate tells everything that cannot work in s on one machine; see ValidateCluster. It takes a manifest before or after Default: an
// optional field that is zero is left out. Status is not looked at.
func Validate(s *WangellService) ValidationErrors {
	var errs ValidationErrors
	if s.Name == "" {
		errs.add(namePath, "write a name for the service, for example name: hello", "missing")
	} else {
		errs.label(namePath, s.Name)
	}
	if s.Namespace != "" {
		errs.label(namespacePath, s.Namespace)
	}
	errs.spec(&s.Spec)
	return errs
}

// label checks a DNS-1123 label.
func (e *ValidationErrors) label(p *field.Path, value string) {
	if len(validation.IsDNS1123Label(value)) > 0 {
		e.add(p, "write "+fieldName(p)+": "+toLabel(value),
			"want a DNS label (RFC 1123: at most 63 of a-z, 0-9 and -, a letter or digit first and last), got %q", value)
	}
}

// toLabel makes a DNS label of what was written, to offer it.
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

// fieldName is the last name of a path, without an index.
func fieldName(p *field.Path) string {
	s := p.String()
	return s[strings.LastIndexByte(s, '.')+1:]
}

func (e *ValidationErrors) spec(s *WangellServiceSpec) {
	e.clusterOnly(s)
	if s.Template == nil {
		e.image(s.Image)
	}
	e.common(s)

	command := specPath.Child("command")
	if len(s.Command) > 0 && s.Command[0] == "" {
		e.add(command.Index(0), `write the program, for example command: ["/bin/server"]`, "is empty")
	}
	e.noNUL(command, s.Command)
	e.noNUL(specPath.Child("args"), s.Args)
	if s.WorkingDir != "" {
		e.absolute(specPath.Child("workingDir"), s.WorkingDir)
	}
	e.env(s.Env)
	e.resources(&s.Resources)
	e.volumes(s.Volumes)
	e.volumeMounts(s.VolumeMounts, s.Volumes)
	e.securityContext(s.SecurityContext)
}

func (e *ValidationErrors) image(image string) {
	p := specPath.Child("image")
	const example = "image: registry.example.com/app:v1"
	if image == "" {
		e.add(p, "write which image to run, for example "+example, "missing")
		return
	}
	if err := parseImage(image); err != nil {
		e.add(p, "write registry/name:tag or registry/name@sha256:..., for example "+example,
			"%q is not an image reference: %s", image, strings.TrimSuffix(err.Error(), ": "+image))
	}
}

// parseImage is name.ParseReference with an error that says what is wrong.
func parseImage(image string) error {
	if strings.Contains(image, "@") {
		_, err := name.NewDigest(image)
		return err
	}
	_, err := name.NewTag(image)
	return err
}

// inRange checks a number; zero is "left out" where the range does not have it.
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

func (e *ValidationErrors) address(address string) {
	if address == "" {
		return
	}
	p := specPath.Child("address")
	const fix = "write an address of the instance's range, for example address: 10.46.100.5, or leave it out"
	ip, err := netip.ParseAddr(address)
	switch {
	case err != nil || !ip.Is4():
		e.add(p, fix, "want an IPv4 address, got %q", address)
	case ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() || ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		e.add(p, fix, "%s cannot be the address of a service: it is unspecified, loopback, multicast or broadcast", ip)
	}
}

// oneOf checks a word; empty is "left out". The first of the words is offered.
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

// orList is "a, b or c".
func orList(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// noNUL checks words that go to execve(2), which ends a word at a NUL.
func (e *ValidationErrors) noNUL(p *field.Path, words []string) {
	for i, w := range words {
		if strings.IndexByte(w, 0) >= 0 {
			e.add(p.Index(i), "remove it", `has a NUL character (\0), which no process can be given`)
		}
	}
}

// absolute checks a path in a container or on the host; it tells whether the path is fine.
func (e *ValidationErrors) absolute(p *field.Path, file string) bool {
	switch {
	case strings.IndexByte(file, 0) >= 0:
		e.add(p, "remove it", `has a NUL character (\0), which no path can have`)
	case !path.IsAbs(file):
		e.add(p, fmt.Sprintf("write %s: %s", fieldName(p), path.Clean("/"+file)), "want an absolute path, got %q", file)
	case hasDotDot(file):
		e.add(p, fmt.Sprintf("write %s: %s", fieldName(p), path.Clean(file)), `has ".." in it, got %q`, file)
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
