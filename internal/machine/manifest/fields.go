// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// structFields indexes the fields of a struct by their JSON names, including those of embedded structs.
type structFields struct {
	byName map[string][]int // for reflect.Value.FieldByIndex
	names  []string
}

// fieldCache maps a reflect.Type to its *structFields, so that tags are parsed once per type and not once per service.
var fieldCache sync.Map

func fieldsOf(t reflect.Type) *structFields {
	if f, ok := fieldCache.Load(t); ok {
		return f.(*structFields)
	}
	f := &structFields{byName: map[string][]int{}}
	f.collect(t, nil)
	actual, _ := fieldCache.LoadOrStore(t, f)
	return actual.(*structFields)
}

func (f *structFields) collect(t reflect.Type, at []int) {
	for i := range t.NumField() {
		sf := t.Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		index := append(at[:len(at):len(at)], i)
		switch {
		case name == "-" || !sf.IsExported():
		case name == "" && sf.Anonymous:
			f.collect(sf.Type, index)
		default:
			if name == "" {
				name = sf.Name
			}
			f.byName[name] = index
			f.names = append(f.names, name)
		}
	}
}

var jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()

// leafCache maps a reflect.Type to the result of isLeaf.
var leafCache sync.Map

// isLeaf reports whether t implements json.Unmarshaler (Quantity, IntOrString, Time, ...). The Go fields of such a type
// are not fields of the manifest.
func isLeaf(t reflect.Type) bool {
	if leaf, ok := leafCache.Load(t); ok {
		return leaf.(bool)
	}
	leaf := t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(jsonUnmarshaler)
	leafCache.Store(t, leaf)
	return leaf
}
