// SPDX-License-Identifier: Apache-2.0

// Package manifest reads WangellService documents: from files, folders and standard input, as YAML
// or JSON. It is strict. What it does not refuse is complete, has its defaults, and works together;
// what it refuses, it refuses with file, line, field and what to write instead, and as a whole.
package manifest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// Set is the services of all sources, sorted by namespace and name, each with its defaults and an
// empty status. Sets are not changed once they are made; copy a service before changing it.
type Set []*v1alpha1.WangellService

// Get returns the service with a key, nil if there is none.
func (s Set) Get(k runtime.Key) *v1alpha1.WangellService {
	namespace, name, _ := strings.Cut(string(k), "/")
	i, ok := slices.BinarySearchFunc(s, 0, func(svc *v1alpha1.WangellService, _ int) int {
		return cmp.Or(cmp.Compare(svc.Namespace, namespace), cmp.Compare(svc.Name, name))
	})
	if !ok {
		return nil
	}
	return s[i]
}

// Reader reads the same sources again and again. It remembers what standard input and pipes held,
// which can be read only once. Its methods may be called from several goroutines at once.
type Reader struct {
	sources []string
	stdin   io.Reader

	mu     sync.Mutex
	once   map[string][]byte // what standard input and pipes held
	good   Set               // what the last Load without an error gave
	loaded bool
}

// NewReader returns a Reader of sources: files, folders (their *.yaml, *.yml and *.json files, not
// those of folders in them) and "-", which is stdin. stdin may be nil if "-" is not among them.
func NewReader(sources []string, stdin io.Reader) *Reader {
	return &Reader{sources: sources, stdin: stdin, once: map[string][]byte{}}
}

// Load reads sources once; see NewReader and Reader.Load.
func Load(ctx context.Context, sources []string, stdin io.Reader) (Set, error) {
	return NewReader(sources, stdin).Load(ctx)
}

// Load reads all documents of all sources. The error is of type Errors and has everything that is
// wrong, unless ctx ended before; with an error there is no Set.
func (r *Reader) Load(ctx context.Context) (Set, error) {
	l := &loader{names: map[runtime.Key]place{}, addresses: map[string]addressUse{}}
	for _, f := range r.files(&l.errs) {
		text, err := r.read(ctx, f)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("reading manifests: %w", ctx.Err())
		}
		if err != nil {
			l.errs.add(err)
			continue
		}
		l.file(f.name, text)
	}
	if len(l.errs) > 0 {
		l.errs.sort()
		return nil, l.errs
	}
	slices.SortFunc(l.set, func(a, b *v1alpha1.WangellService) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.good, r.loaded = l.set, true
	return l.set, nil
}

// place is where something was written.
type place struct {
	file string
	line int
}

func (p place) String() string { return fmt.Sprintf("%s:%d", p.file, p.line) }

// addressUse is the service that has an address.
type addressUse struct {
	key  runtime.Key
	port int32
	at   place
}

// loader collects the services and errors of one Load.
type loader struct {
	errs      Errors
	set       Set
	names     map[runtime.Key]place
	addresses map[string]addressUse
}

func (l *loader) file(name string, text []byte) {
	docs, err := parse(name, text)
	if err != nil {
		l.errs.add(err)
	} else if len(docs) == 0 {
		// A file that is being written is empty for a moment; that must not stop its services.
		l.errs.add(&Error{File: name, Message: "there is no document in it",
			Fix: "write a " + v1alpha1.Kind + " or remove the file"})
	}
	for _, doc := range docs {
		l.document(&document{file: name, size: len(text), root: doc})
	}
}

// document is one document of a file.
type document struct {
	file string
	size int // of the whole file, in bytes
	root *yaml.Node
}

// find returns the place of a field or of the deepest parent that is there.
func (d *document) find(path string) *yaml.Node {
	t := newTree(d.size)
	n, _ := t.find(d.root, path)
	return n
}

func (l *loader) document(doc *document) {
	d := &decoder{file: doc.file, errs: &l.errs, tree: newTree(doc.size)}
	if !d.header(doc.root) {
		return
	}
	s := new(v1alpha1.WangellService)
	d.value(doc.root, reflect.ValueOf(s).Elem(), nil)
	if d.failed {
		return
	}
	v1alpha1.Default(s)
	for _, e := range v1alpha1.Validate(s) {
		if !d.covers(e.Field) {
			d.fail(doc.find(e.Field), pathOf(e.Field), e.Fix, "%s", e.Message)
		}
	}
	l.together(d, doc, s)
	l.set = append(l.set, s)
}

// together checks a service against those before it.
func (l *loader) together(d *decoder, doc *document, s *v1alpha1.WangellService) {
	key := runtime.KeyOf(s)
	at := doc.find("metadata.name")
	if first, twice := l.names[key]; twice && s.Name != "" {
		d.fail(at, pathOf("metadata.name"), "write another name or namespace, or remove one of the two",
			"service %s is already written at %s", key, first)
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
		l.addresses[s.Spec.Address] = addressUse{key, s.Spec.Port, place{doc.file, at.Line}}
	case other.port == s.Spec.Port:
		d.fail(at, pathOf("spec.address"), "write another address, or leave it out",
			"%s:%d is already the service address of %s at %s", s.Spec.Address, s.Spec.Port, other.key, other.at)
	default:
		d.fail(at, pathOf("spec.address"), "write another address, or leave it out",
			"%s is already the address of %s at %s, and an address belongs to one service", s.Spec.Address, other.key, other.at)
	}
}
