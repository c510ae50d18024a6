// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxFileSize is how many bytes one file may have.
const maxFileSize = 10 << 20

// stdinSource is the source that stands for standard input.
const stdinSource = "-"

// stdinName is how standard input is called in messages.
const stdinName = "standard input"

// input is one file to read.
type input struct {
	// name is how the user knows it.
	name  string
	stdin bool
	// regular: reading it does not wait for anybody.
	regular bool
}

// files lists the files of all sources, each once.
func (r *Reader) files(errs *Errors) []input {
	var all []input
	seen := map[string]bool{}
	add := func(f input) {
		real, err := filepath.EvalSymlinks(f.name)
		if err != nil || f.stdin {
			real = f.name
		}
		if absolute, err := filepath.Abs(real); err == nil && !f.stdin {
			real = absolute
		}
		if !seen[real] {
			seen[real] = true
			all = append(all, f)
		}
	}
	for _, source := range r.sources {
		if source == stdinSource {
			add(input{name: stdinName, stdin: true})
			continue
		}
		info, err := os.Stat(source)
		switch {
		case err != nil:
			errs.add(fileError(source, err))
		case info.IsDir():
			for _, f := range folder(source, errs) {
				add(f)
			}
		default:
			add(input{name: source, regular: info.Mode().IsRegular()})
		}
	}
	return all
}

// folder lists the manifests in a folder.
func folder(dir string, errs *Errors) []input {
	entries, err := os.ReadDir(dir)
	if err != nil {
		errs.add(fileError(dir, err))
		return nil
	}
	var all []input
	for _, e := range entries {
		if !isManifestName(e.Name()) {
			continue
		}
		file := filepath.Join(dir, e.Name())
		info, err := os.Stat(file) // through a symlink
		switch {
		case errors.Is(err, fs.ErrNotExist) && e.Type()&fs.ModeSymlink == 0:
			// It went between listing and looking.
		case err != nil:
			errs.add(fileError(file, err))
		case info.Mode().IsRegular():
			all = append(all, input{name: file, regular: true})
		}
	}
	return all
}

// isManifestName tells whether a file in a folder is read. Names that begin with a dot are editors'
// and Kubernetes' own.
func isManifestName(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

func fileError(name string, err error) *Error {
	e := &Error{File: name, Message: err.Error()}
	var path *fs.PathError
	if errors.As(err, &path) {
		e.Message = path.Err.Error()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Fix = "check the name; it is looked up from the folder in which you are"
	case errors.Is(err, fs.ErrPermission):
		e.Fix = "make it readable"
	}
	return e
}

// read returns the text of a file, at most maxFileSize bytes.
func (r *Reader) read(ctx context.Context, f input) ([]byte, *Error) {
	switch {
	case f.regular:
		return readFile(f.name)
	case !f.stdin: // a pipe, such as a shell's <(...)
		return r.readOnce(ctx, f.name, func() ([]byte, *Error) { return readFile(f.name) })
	case r.stdin == nil:
		return nil, &Error{File: f.name, Message: "there is none", Fix: "name a file"}
	default:
		return r.readOnce(ctx, f.name, func() ([]byte, *Error) { return readBounded(f.name, r.stdin) })
	}
}

func readFile(name string) ([]byte, *Error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fileError(name, err)
	}
	defer file.Close()
	return readBounded(name, file)
}

func readBounded(name string, r io.Reader) ([]byte, *Error) {
	text, err := io.ReadAll(io.LimitReader(r, maxFileSize+1))
	if err != nil {
		return nil, fileError(name, err)
	}
	if len(text) > maxFileSize {
		return nil, &Error{File: name, Message: fmt.Sprintf("is larger than %d MiB", maxFileSize>>20),
			Fix: "split it into several files"}
	}
	return text, nil
}

// readOnce reads what can be read only once, and whose writer may take its time, until ctx ends. It
// remembers the text. The read itself cannot be interrupted; its goroutine ends with it.
func (r *Reader) readOnce(ctx context.Context, name string, read func() ([]byte, *Error)) ([]byte, *Error) {
	r.mu.Lock()
	text, done := r.once[name]
	r.mu.Unlock()
	if done {
		return text, nil
	}
	type result struct {
		text []byte
		err  *Error
	}
	results := make(chan result, 1)
	go func() {
		text, err := read()
		results <- result{text, err}
	}()
	select {
	case got := <-results:
		if got.err == nil {
			r.mu.Lock()
			r.once[name] = got.text
			r.mu.Unlock()
		}
		return got.text, got.err
	case <-ctx.Done():
		return nil, fileError(name, ctx.Err())
	}
}
