// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"reflect"

	"wangell.loutres.me/api/v1alpha1"
)

// file reads all documents of a file's text.
func (l *loader) file(name string, text []byte) {
	docs, err := parse(name, text)
	if err != nil {
		l.errs.add(err)
	} else if len(docs) == 0 {
		// A file that is being written is empty for a moment, which must not stop its services.
		l.errs.add(&Error{File: name, Message: "contains no document",
			Fix: "write a " + v1alpha1.Kind + " or remove the file"})
	}
	for _, doc := range docs {
		l.document(&document{file: name, size: len(text), root: doc})
	}
}

// valid returns the services of the files without mistakes, and those of an earlier result, with the file of each,
// whose file has mistakes.
func (l *loader) valid(earlier Set, files map[v1alpha1.Key]string) []service {
	var out []service
	names, addresses := map[v1alpha1.Key]bool{}, map[string]bool{}
	for _, s := range l.services {
		if l.errs.concern(s.file) {
			continue
		}
		out = append(out, s)
		names[v1alpha1.KeyOf(s.WangellService)] = true
		addresses[s.Spec.Address] = s.Spec.Address != ""
	}
	for _, s := range earlier {
		k := v1alpha1.KeyOf(s)
		if l.errs.concern(files[k]) && !names[k] && !addresses[s.Spec.Address] && !l.volumeTaken(s) {
			out = append(out, service{s, files[k], nil})
		}
	}
	return out
}

func (l *loader) document(doc *document) {
	d := &decoder{file: doc.file, errs: &l.errs, tree: newTree(doc.size)}
	if kind := d.kindOf(doc.root); kind == v1alpha1.KindSecret || kind == v1alpha1.KindConfigMap {
		l.object(d, doc, kind)
		return
	}
	if !d.header(doc.root) {
		return
	}
	s := new(v1alpha1.WangellService)
	d.value(doc.root, reflect.ValueOf(s).Elem(), nil)
	if d.truncated {
		return
	}
	v1alpha1.Default(s)
	for _, e := range v1alpha1.Validate(s) {
		if !d.covers(e.Field) {
			d.fail(doc.find(e.Field), pathOf(e.Field), e.Fix, "%s", e.Message)
		}
	}
	l.conflicts(d, doc, s)
	l.volumeConflicts(d, doc, s)
	l.services = append(l.services, service{s, doc.file, doc})
}

// conflicts checks a service against those loaded before it.
func (l *loader) conflicts(d *decoder, doc *document, s *v1alpha1.WangellService) {
	key := v1alpha1.KeyOf(s)
	at := doc.find("metadata.name")
	if first, twice := l.names[key]; twice && s.Name != "" {
		d.fail(at, pathOf("metadata.name"), "use another name or namespace, or remove one of the two",
			"service %s is already defined at %s", key, first)
	} else {
		l.names[key] = place{doc.file, at.Line}
	}
	if s.Spec.Address == "" {
		return
	}
	at = doc.find("spec.address")
	other, taken := l.addresses[s.Spec.Address]
	switch {
	case !taken:
		l.addresses[s.Spec.Address] = addressUse{key, s.Spec.FirstPort().Number, place{doc.file, at.Line}}
	case other.port == s.Spec.FirstPort().Number:
		d.fail(at, pathOf("spec.address"), "use another address, or leave it out",
			"%s:%d is already the service address of %s at %s", s.Spec.Address, other.port, other.key, other.at)
	default:
		d.fail(at, pathOf("spec.address"), "use another address, or leave it out",
			"%s is already the address of %s at %s, and an address belongs to one service",
			s.Spec.Address, other.key, other.at)
	}
}
