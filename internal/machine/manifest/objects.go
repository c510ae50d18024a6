// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/base64"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"wangell.loutres.me/api/v1alpha1"
)

// maxObjectSize is the largest sum of an object's values in bytes, as in Kubernetes.
const maxObjectSize = 1 << 20

// secretDocument and configMapDocument are the fields of the documents, as Kubernetes has them.
type secretDocument struct {
	APIVersion        string `json:"apiVersion"`
	Kind              string `json:"kind"`
	metav1.ObjectMeta `json:"metadata"`
	Type              string            `json:"type"`
	Immutable         *bool             `json:"immutable"`
	Data              map[string]string `json:"data"`
	StringData        map[string]string `json:"stringData"`
}

type configMapDocument struct {
	APIVersion        string `json:"apiVersion"`
	Kind              string `json:"kind"`
	metav1.ObjectMeta `json:"metadata"`
	Immutable         *bool             `json:"immutable"`
	Data              map[string]string `json:"data"`
	BinaryData        map[string]string `json:"binaryData"`
}

// kindOf returns the kind of a document; empty if it has none.
func (d *decoder) kindOf(root *yaml.Node) string {
	n, ok := d.tree.visit(root)
	if !ok {
		return ""
	}
	set, _ := d.tree.fields(n)
	e, ok := set.find("kind")
	if !ok {
		return ""
	}
	if e.value, ok = d.tree.visit(e.value); !ok {
		return ""
	}
	return e.value.Value
}

// object reads a Secret or a ConfigMap. Its errors never contain a value.
func (l *loader) object(d *decoder, doc *document, kind string) {
	d.hide = true
	root, _ := d.tree.visit(doc.root)
	set, _ := d.tree.fields(root)
	if at, got := d.constant(set, root, "apiVersion", "v1"); at != nil {
		d.fail(at, field.NewPath("apiVersion"), "write apiVersion: v1", "want v1, got %s", orNothing(got))
		return
	}
	before := len(l.errs)
	o := object{objectID: objectID{kind: kind}, values: map[string][]byte{}}
	var meta metav1.ObjectMeta
	if kind == v1alpha1.KindSecret {
		var s secretDocument
		d.value(doc.root, reflect.ValueOf(&s).Elem(), nil)
		meta = s.ObjectMeta
		l.decode64(d, doc, "data", s.Data, o.values)
		o.add(s.StringData)
	} else {
		var c configMapDocument
		d.value(doc.root, reflect.ValueOf(&c).Elem(), nil)
		meta = c.ObjectMeta
		l.decode64(d, doc, "binaryData", c.BinaryData, o.values)
		o.add(c.Data)
	}
	if o.namespace, o.name = meta.Namespace, meta.Name; o.namespace == "" {
		o.namespace = v1alpha1.DefaultNamespace
	}
	at := doc.find("metadata.name")
	o.at = place{doc.file, at.Line}
	l.checkObject(d, doc, &o)
	if len(l.errs) > before || d.truncated {
		return
	}
	if i := slices.IndexFunc(l.objects, func(x object) bool { return x.objectID == o.objectID }); i >= 0 {
		d.fail(at, pathOf("metadata.name"), "use another name or namespace, or remove one of the two",
			"%s is already defined at %s", o.objectID, l.objects[i].at)
		return
	}
	l.objects = append(l.objects, o)
}

func (o *object) add(values map[string]string) {
	for key, value := range values {
		o.values[key] = []byte(value)
	}
}

func (l *loader) checkObject(d *decoder, doc *document, o *object) {
	at := doc.find("metadata.name")
	if o.name == "" || len(validation.IsDNS1123Subdomain(o.name)) > 0 {
		d.fail(at, pathOf("metadata.name"), "write a name such as name: db",
			"want at most 253 of a-z, 0-9, - and ., a letter or digit first and last; got %q", clip(o.name))
	}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(o.values)) {
		size += len(o.values[key])
		if len(validation.IsConfigMapKey(key)) > 0 {
			d.fail(at, pathOf("data").Key(clip(key)), "write another key", "want letters, digits, -, _ and . as a key")
		}
	}
	if size > maxObjectSize {
		d.fail(at, pathOf("data"), "make it several, or mount a hostPath", "has %d bytes, at most %d are possible", size,
			maxObjectSize)
	}
}

// decode64 decodes values that are written in base64 (RFC 4648).
func (l *loader) decode64(d *decoder, doc *document, name string, from map[string]string, to map[string][]byte) {
	for _, key := range slices.Sorted(maps.Keys(from)) {
		value, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(from[key]), ""))
		if err != nil {
			path := pathOf(name).Key(clip(key))
			fix := "write what base64 makes of the value, or the value itself below stringData"
			if name == "binaryData" {
				fix = "write what base64 makes of the value, or the text itself below data"
			}
			d.fail(doc.find(name), path, fix, "is not base64")
			continue
		}
		to[key] = value
	}
}

// validObjects returns the objects of the files without mistakes, and those that the other files had before.
func (l *loader) validObjects(earlier []object) []object {
	known := map[objectID]bool{}
	var out []object
	for _, o := range l.objects {
		if !l.errs.concern(o.at.file) {
			out = append(out, o)
			known[o.objectID] = true
		}
	}
	for _, o := range earlier {
		if l.errs.concern(o.at.file) && !known[o.objectID] {
			out = append(out, o)
		}
	}
	return out
}

// resolve gives services the data of the objects to which they refer, and reports missing objects. It returns the
// valid objects. A file with a service that lacks something counts as having no objects, so services of other files
// may lack those in turn: this is repeated until nothing changes.
func (l *loader) resolve(earlier []object) []object {
	for {
		objects, before := l.validObjects(earlier), len(l.errs)
		index := make(map[objectID]object, len(objects))
		for _, o := range objects {
			index[o.objectID] = o
		}
		for _, s := range l.services {
			if !l.errs.concern(s.file) {
				l.refer(s, index)
			}
		}
		if len(l.errs) == before {
			return objects
		}
	}
}

// refer gives one service its data.
func (l *loader) refer(s service, objects map[objectID]object) {
	data := &v1alpha1.ConfigData{}
	d := &decoder{file: s.file, errs: &l.errs}
	found := false
	for r := range s.Spec.References {
		o, ok := objects[objectID{r.Kind, s.Namespace, r.Name}]
		if ok {
			data.Add(r.Kind, r.Name, o.values)
			found = true
		}
		err := data.CheckReference(r)
		switch {
		case err == nil:
		case ok && r.KeyField != nil:
			d.fail(s.doc.find(r.KeyField.String()), r.KeyField, "write one of its keys, or optional: true", "%v", err)
		case ok:
			d.fail(s.doc.find(r.Field.String()), r.Field, "mount it as a volume instead", "%v", err)
		default:
			d.fail(s.doc.find(r.Field.String()), r.Field, fmt.Sprintf("add a document with kind: %s, name: %s and "+
				"namespace: %s to one of the files, or write optional: true", r.Kind, r.Name, s.Namespace), "%v", err)
		}
	}
	if found {
		s.Spec.Config = data
	}
}
