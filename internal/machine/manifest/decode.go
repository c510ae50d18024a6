// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"wangell.loutres.me/api/v1alpha1"
)

// decoder fills a Go value from YAML nodes, guided by the value's type and its JSON tags, and reports everything that
// does not fit. It accepts what encoding/json accepts of the same text as JSON, but refuses unknown and repeated fields
// and records where each field is written.
type decoder struct {
	file string
	errs *Errors
	tree tree
	// reported holds the paths of fields that have an error, including the fields that unknown names probably meant.
	reported []string
	// truncated is set once the budget of nodes is spent, so that part of the document was not read.
	truncated bool
	// hide keeps values out of errors.
	hide bool
}

func (d *decoder) fail(n *yaml.Node, p *field.Path, fix, message string, args ...any) {
	path := pathString(p)
	d.reported = append(d.reported, path)
	d.errs.add(&Error{File: d.file, Line: n.Line, Column: n.Column, Field: path,
		Message: fmt.Sprintf(message, args...), Fix: fix})
}

// describe says what a node is.
func (d *decoder) describe(n *yaml.Node) string {
	if d.hide && n.Kind == yaml.ScalarNode && !isNull(n) {
		return "something else"
	}
	return describe(n)
}

// quote returns the text of a node in quotes.
func (d *decoder) quote(n *yaml.Node) string {
	if d.hide {
		return `"..." in quotes`
	}
	return quote(n.Value)
}

// value fills v from a node.
func (d *decoder) value(at *yaml.Node, v reflect.Value, p *field.Path) {
	n, ok := d.tree.visit(at)
	if !ok {
		d.tooMuch(at, p)
		return
	}
	if isNull(n) {
		return // the same as leaving it out
	}
	if isLeaf(v.Type()) {
		d.leaf(at, n, v, p)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(n, v.Elem(), p)
	case reflect.Struct:
		d.structure(at, n, v, p)
	case reflect.Map:
		d.mapping(at, n, v, p)
	case reflect.Slice:
		d.list(at, n, v, p)
	default:
		d.scalar(at, n, v, p)
	}
}

func (d *decoder) tooMuch(n *yaml.Node, p *field.Path) {
	if !d.truncated {
		d.truncated = true
		d.fail(n, p, "write the values out", "too many aliases, or an alias inside itself")
	}
}

// fields returns the fields of a mapping and reports the problems with their names.
func (d *decoder) fields(n *yaml.Node, p *field.Path) []entry {
	set, ok := d.tree.fields(n)
	if !ok {
		d.tooMuch(n, p)
	}
	for _, wrong := range set.problems {
		at := p
		if wrong.name != "" {
			at = child(p, clip(wrong.name))
		}
		d.fail(wrong.at, at, wrong.fix, "%s", wrong.message)
	}
	return set.list
}

// child is p.Child for a path that may be nil, the document itself.
func child(p *field.Path, name string) *field.Path {
	if p == nil {
		return field.NewPath(name)
	}
	return p.Child(name)
}

func (d *decoder) structure(at, n *yaml.Node, v reflect.Value, p *field.Path) {
	fields := fieldsOf(v.Type())
	if n.Kind != yaml.MappingNode {
		d.fail(at, p, "write its fields below it, indented: "+offer(v.Type()), "want fields, got %s", d.describe(n))
		return
	}
	for _, e := range d.fields(n, p) {
		name := e.key.Value
		index, known := fields.byName[name]
		switch {
		case p == nil && name == "status":
			// Observed state is not part of what the user asks for.
		case known:
			d.value(e.value, v.FieldByIndex(index), child(p, name))
		default:
			d.unknown(e.key, v.Type(), p)
		}
	}
}

// inTemplate returns where a field of pods goes that somebody has written into the spec of a service, which is a struct
// of type t; empty if it is none.
func inTemplate(name string, t reflect.Type) string {
	if t != reflect.TypeFor[v1alpha1.WangellServiceSpec]() {
		return ""
	}
	if _, ok := fieldsOf(reflect.TypeFor[corev1.PodSpec]()).byName[name]; ok {
		return "spec.template.spec"
	}
	if _, ok := fieldsOf(reflect.TypeFor[corev1.Container]()).byName[name]; ok {
		return "a container of spec.template.spec.containers"
	}
	return ""
}

// unknown reports an unknown field and suggests the one that was probably meant.
func (d *decoder) unknown(key *yaml.Node, t reflect.Type, p *field.Path) {
	name := key.Value
	fix := "remove it; the fields here are " + offer(t)
	if place := inTemplate(name, t); place != "" {
		fix = "remove it; on Kubernetes it goes into " + place
	} else if meant, ok := nearest(name, fieldsOf(t).names); ok {
		fix = "did you mean " + meant + "?"
		d.reported = append(d.reported, child(p, meant).String())
	} else if _, ok := fieldsOf(reflect.TypeFor[v1alpha1.WangellServiceSpec]()).byName[name]; ok {
		fix = "did you mean spec." + name + "? Write it below spec:, indented"
		d.reported = append(d.reported, "spec."+name)
	}
	d.fail(key, child(p, clip(name)), fix, "unknown field")
}

func (d *decoder) mapping(at, n *yaml.Node, v reflect.Value, p *field.Path) {
	if n.Kind != yaml.MappingNode {
		d.fail(at, p, "write name: value below it, indented", "want names and values, got %s", d.describe(n))
		return
	}
	v.Set(reflect.MakeMapWithSize(v.Type(), len(n.Content)/2))
	for _, e := range d.fields(n, p) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.item(e.value, item, p.Key(clip(e.key.Value)))
		v.SetMapIndex(reflect.ValueOf(e.key.Value).Convert(v.Type().Key()), item)
	}
}

func (d *decoder) list(at, n *yaml.Node, v reflect.Value, p *field.Path) {
	if n.Kind != yaml.SequenceNode {
		fix := "write a list, each item on its own line after a dash"
		if n.Kind == yaml.ScalarNode && v.Type().Elem().Kind() == reflect.String {
			fix = "write " + assign(p, inList(n.Value))
		}
		d.fail(at, p, fix, "want a list, got %s", d.describe(n))
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.item(item, v.Index(i), p.Index(i))
	}
}

// item fills an item of a list or a map. Unlike a field, an item cannot be null.
func (d *decoder) item(n *yaml.Node, v reflect.Value, p *field.Path) {
	if target, ok := d.tree.visit(n); ok && isNull(target) {
		d.fail(n, p, "give it a value or remove it", "is empty")
		return
	}
	d.value(n, v, p)
}

// leaf fills a value of a type that implements json.Unmarshaler.
func (d *decoder) leaf(at, n *yaml.Node, v reflect.Value, p *field.Path) {
	known, special := leaves[v.Type()]
	if special && (n.Kind != yaml.ScalarNode || !known.text.MatchString(n.Value)) {
		d.fail(at, p, "write "+assign(p, known.exampleFor(p)), "want %s, got %s", known.want, d.describe(n))
		return
	}
	plain, ok := d.tree.plain(n, 0)
	if !ok {
		d.tooMuch(at, p)
		return
	}
	if special {
		plain = n.Value // keep a number as it is written
	}
	text, err := json.Marshal(plain)
	if err == nil {
		err = v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(text)
	}
	switch {
	case err == nil:
	case special:
		d.fail(at, p, "write "+assign(p, known.exampleFor(p)), "want %s, got %s", known.want, d.describe(n))
	default:
		d.fail(at, p, "see the Kubernetes documentation of this field", "%s", clip(err.Error()))
	}
}

func (d *decoder) scalar(at, n *yaml.Node, v reflect.Value, p *field.Path) {
	switch v.Kind() {
	case reflect.String:
		d.text(at, n, v, p)
	case reflect.Bool:
		b, err := strconv.ParseBool(strings.ToLower(n.Value))
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || err != nil {
			d.fail(at, p, "write "+assign(p, strconv.FormatBool(slices.Contains(yes, strings.ToLower(n.Value)))),
				"want true or false, got %s", d.describe(n))
			return
		}
		v.SetBool(b)
	case reflect.Int32, reflect.Int64:
		d.number(at, n, v, p)
	default:
		panic(fmt.Sprintf("manifest: %s: cannot decode into %s", p, v.Type())) // a test covers all types
	}
}

var (
	yes = []string{"y", "yes", "on", "true", "1"}
	no  = []string{"n", "no", "off", "false", "0"}
)

func (d *decoder) text(at, n *yaml.Node, v reflect.Value, p *field.Path) {
	if n.Kind != yaml.ScalarNode {
		d.fail(at, p, "write "+assign(p, `"text"`), "want text, got %s", d.describe(n))
		return
	}
	switch tag := n.ShortTag(); {
	case tag != "!!str" && tag != "!!timestamp" && tag != "!!merge":
		d.fail(at, p, "write "+assign(p, d.quote(n)), "want text, got %s", d.describe(n))
	case n.Style == 0 && isYAML11Bool(n.Value):
		// kubectl reads YAML 1.1, in which this is a boolean.
		word := n.Value
		if d.hide {
			word = "a word"
		}
		d.fail(at, p, "write "+assign(p, d.quote(n)), "want text, got %s, which Kubernetes reads as a boolean", word)
	default:
		v.SetString(n.Value)
	}
}

// isYAML11Bool reports whether YAML 1.1 reads s as a boolean and YAML 1.2 as text.
func isYAML11Bool(s string) bool {
	s = strings.ToLower(s)
	return slices.Contains(yes[:3], s) || slices.Contains(no[:3], s)
}

func (d *decoder) number(at, n *yaml.Node, v reflect.Value, p *field.Path) {
	i, err := wholeNumber(n.Value)
	r, ranged := v1alpha1.RangeOf(pathString(p))
	isNumber := n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" && err == nil && !v.OverflowInt(i)
	if isNumber && (!ranged || r.Has(i)) {
		v.SetInt(i)
		return
	}
	want, example := "a whole number", int64(1)
	if ranged {
		want, example = r.String(), r.Example
	}
	if err == nil && !v.OverflowInt(i) && (!ranged || r.Has(i)) {
		example = i
	}
	d.fail(at, p, "write "+assign(p, strconv.FormatInt(example, 10)), "want %s, got %s", want, d.describe(n))
}

func wholeNumber(s string) (int64, error) {
	return strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 0, 64)
}
