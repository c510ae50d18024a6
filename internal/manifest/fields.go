// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// structFields are the fields of a struct by their JSON names; those of inlined structs are among them.
type structFields struct {
	byName map[string][]int // for reflect.Value.FieldByIndex
	names  []string
}

// fieldCache has the *structFields of every reflect.Type that was met: reflection over tags is done
// once a type and not once a service.
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

// leafCache tells for every reflect.Type that was met whether it reads its own JSON.
var leafCache sync.Map

// isLeaf tells whether t reads its own JSON (Quantity, IntOrString, Time, ...), so that its fields
// are not those of the manifest.
func isLeaf(t reflect.Type) bool {
	if leaf, ok := leafCache.Load(t); ok {
		return leaf.(bool)
	}
	leaf := t.Kind() != reflect.Pointer && reflect.PointerTo(t).Implements(jsonUnmarshaler)
	leafCache.Store(t, leaf)
	return leaf
}
