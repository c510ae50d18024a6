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

// leafWords says how to speak of a type that reads its own JSON.
type leafWords struct {
	want, example string
	// text is what can be right: a bound on what the type's own parser is given.
	text *regexp.Regexp
}

// exampleFor is what to write: a share of a CPU is not a size in bytes.
func (w leafWords) exampleFor(p *field.Path) string {
	if strings.HasSuffix(pathString(p), "[cpu]") {
		return "500m"
	}
	return w.example
}

var leaves = map[reflect.Type]leafWords{
	// The exponent is bounded because the parser computes the number it stands for. A leading zero
	// is refused because YAML makes an octal number of it.
	reflect.TypeFor[resource.Quantity](): {"a quantity such as 500m, 2 or 64Mi", "64Mi",
		regexp.MustCompile(`^[+-]?(0|[1-9][0-9]{0,18})?(\.[0-9]{0,18})?([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?$`)},
	reflect.TypeFor[metav1.Time](): {"a time such as 2024-11-16T16:29:14Z", "2024-11-16T16:29:14Z",
		regexp.MustCompile(`^[0-9TZtz:.+-]{1,40}$`)},
}

// offer names the fields of a struct that a user can write.
func offer(t reflect.Type) string {
	names := v1alpha1.Supported(t)
	if names == nil {
		names = fieldsOf(t).names
	}
	return strings.Join(slices.Sorted(slices.Values(names)), ", ")
}

// describe says what a node is, in a user's words.
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

// maxQuoted is how many bytes of a user's text a message repeats.
const maxQuoted = 80

// clip shortens text for a message and leaves nothing in it that a terminal would obey.
func clip(s string) string {
	quoted := quote(s)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// quote is text as a double-quoted YAML scalar, shortened.
func quote(s string) string {
	if len(s) > maxQuoted {
		s = strings.ToValidUTF8(s[:maxQuoted], "") + "..."
	}
	return strconv.Quote(s)
}

// inList is the words of a text as a list; one that a shell would have to read stays whole.
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

// assign is how to write a value of a field: "port: 80"; for an item of a list the value alone.
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
