// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"wangell.loutres.me/api/v1alpha1"
)

// leafWords describes a type that implements json.Unmarshaler, for error messages.
type leafWords struct {
	want, example string
	// text matches whatever may be valid. It bounds what the type's own parser is given.
	text *regexp.Regexp
}

// exampleFor returns an example for a field: a CPU is not measured in bytes, and pods freeze before they stop.
func (w leafWords) exampleFor(p *field.Path) string {
	switch name := pathString(p); {
	case strings.HasSuffix(name, "[cpu]"):
		return "500m"
	case strings.HasSuffix(name, ".freezeAfter"):
		return "5s"
	}
	return w.example
}

var leaves = map[reflect.Type]leafWords{
	// The exponent is bounded because the parser computes the number. A leading zero is refused because YAML reads the
	// digits as octal.
	reflect.TypeFor[resource.Quantity](): {"a quantity such as 500m, 2 or 64Mi", "64Mi", regexp.MustCompile(
		`^[+-]?(0|[1-9][0-9]{0,18})?(\.[0-9]{0,18})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$`)},
	reflect.TypeFor[metav1.Duration](): {"a time such as 5s, 30m or 2h", "30m",
		regexp.MustCompile(`^([0-9]{1,9}(\.[0-9]{1,9})?(ns|us|µs|ms|s|m|h)){1,6}$`)},
	reflect.TypeFor[metav1.Time](): {"a time such as 2024-11-16T16:29:14Z", "2024-11-16T16:29:14Z",
		regexp.MustCompile(`^[0-9TZtz:.+-]{1,40}$`)},
}

// pathString returns the text of a path, which is empty for the document itself.
func pathString(p *field.Path) string {
	if p == nil {
		return ""
	}
	return p.String()
}

// offer lists the fields of a struct that a manifest may set.
func offer(t reflect.Type) string {
	names := v1alpha1.Supported(t)
	if names == nil {
		names = fieldsOf(t).names
	}
	return strings.Join(slices.Sorted(slices.Values(names)), ", ")
}

// describe says what a node is, in the user's terms.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!int", "!!float":
		return "the number " + clip(n.Value)
	case "!!bool":
		return clip(n.Value)
	case "!!null":
		return "nothing"
	default:
		return "the text " + quote(n.Value)
	}
}

// maxQuoted is how many bytes of the user's text a message repeats.
const maxQuoted = 80

// clip shortens text for a message and escapes everything that a terminal would interpret.
func clip(s string) string {
	quoted := quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// quote returns text as a double-quoted YAML scalar, shortened.
func quote(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "..."
	}
	return strconv.Quote(s)
}

// inList returns text as a YAML list of its words. Text that needs a shell to split stays one item.
func inList(text string) string {
	words := []string{text}
	if !strings.ContainsAny(text, "\"'`$&|;<>(){}*?\\") {
		words = strings.Fields(text)
	}
	for i := range words {
		words[i] = quote(words[i])
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// assign returns how to write a field: "port: 80". For an item of a list, that is the value alone.
func assign(p *field.Path, value string) string {
	name := pathString(p)
	if bracket := strings.IndexByte(name, '['); !strings.HasSuffix(name, "]") || bracket < 0 {
		name = name[strings.LastIndexByte(name, '.')+1:]
	} else {
		name = name[strings.LastIndexByte(name, '['):]
	}
	before, key, isItem := strings.Cut(name, "[")
	if !isItem {
		return before + ": " + value
	}
	key = strings.TrimSuffix(key, "]")
	if _, err := strconv.Atoi(key); err == nil {
		return value
	}
	return key + ": " + value
}
