// SPDX-License-Identifier: Apache-2.0

// Package manifest reads WangellService documents, and the Secrets and ConfigMaps to which they refer, as YAML or JSON,
// from files, folders and standard input.
//
// It is strict: either every document of a file is valid, with defaults applied and no conflict with another one, or
// nothing of the file is loaded. Errors name the file, the line and the field, and say what to write instead.
package manifest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"wangell.loutres.me/api/v1alpha1"
)

// Reader reads the same sources repeatedly. It keeps the text of standard input and pipes, which can be read only once.
// It is safe for concurrent use.
type Reader struct {
	sources sources

	mu     sync.Mutex
	last   Set                     // the result of the last Load
	files  map[v1alpha1.Key]string // the file of each service of last
	config []object                // the objects of the last Load
	loaded bool
}

// NewReader returns a Reader of names: files, folders (their *.yaml, *.yml and *.json files, without subfolders) and
// "-", which is stdin. stdin may be nil if "-" is not among them.
func NewReader(names []string, stdin io.Reader) *Reader {
	return &Reader{sources: sources{names: names, stdin: stdin, once: map[string][]byte{}}}
}

// Load reads all documents of all sources. Unless ctx ended, an error is of type Errors and holds every mistake in
// every file. The set is valid even then: it has the services of the files without a mistake, and those that the other
// files had in the last Load, as far as they do not conflict with the former.
func (r *Reader) Load(ctx context.Context) (Set, error) {
	l := newLoader()
	for _, f := range r.sources.files(&l.errs) {
		text, err := r.sources.read(ctx, f)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read manifests: %w", ctx.Err())
		}
		if err != nil {
			l.errs.add(err)
			continue
		}
		l.file(f.name, text)
	}
	l.revisions()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.config = l.resolve(r.config)
	services := l.valid(r.last, r.files)
	files := make(map[v1alpha1.Key]string, len(services))
	set := make(Set, 0, len(services))
	for _, s := range services {
		files[v1alpha1.KeyOf(s.WangellService)] = s.file
		set = append(set, s.WangellService)
	}
	slices.SortFunc(set, func(a, b *v1alpha1.WangellService) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	r.last, r.files, r.loaded = set, files, true
	if len(l.errs) > 0 {
		l.errs.sort()
		return set, l.errs
	}
	return set, nil
}

// lastLoad returns the set of the last Load; ok is false if there was none.
func (r *Reader) lastLoad() (set Set, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.loaded
}
