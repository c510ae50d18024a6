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
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxFileSize is the largest file, in bytes.
	maxFileSize = 10 << 20
	// stdinSource is the source that stands for standard input, and stdinName its name in messages.
	stdinSource = "-"
	stdinName   = "standard input"
)

// sources reads files, folders and standard input. Standard input and pipes can be read only once, so it keeps their
// text. It is safe for concurrent use.
type sources struct {
	names []string
	stdin io.Reader // nil: none

	mu   sync.Mutex
	once map[string][]byte // text of standard input and pipes
}

// input is one file to read.
type input struct {
	// name is the file's name as the user wrote it.
	name  string
	stdin bool
	// regular means that reading does not block on another program.
	regular bool
}

// files lists the files of all sources, each once.
func (s *sources) files(errs *Errors) []input {
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
	for _, name := range s.names {
		if name == stdinSource {
			add(input{name: stdinName, stdin: true})
			continue
		}
		info, err := os.Stat(name)
		switch {
		case err != nil:
			errs.add(fileError(name, err))
		case info.IsDir():
			for _, f := range folder(name, errs) {
				add(f)
			}
		default:
			add(input{name: name, regular: info.Mode().IsRegular()})
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
		info, err := os.Stat(file) // follows symlinks
		switch {
		case errors.Is(err, fs.ErrNotExist) && e.Type()&fs.ModeSymlink == 0:
			// It was removed after the folder was listed.
		case err != nil:
			errs.add(fileError(file, err))
		case info.Mode().IsRegular():
			all = append(all, input{name: file, regular: true})
		}
	}
	return all
}

// isManifestName reports whether a file in a folder is read. Names that begin with a dot belong to editors and, in
// mounted ConfigMaps, to Kubernetes.
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
		e.Fix = "check the path; relative paths begin at the current folder"
	case errors.Is(err, fs.ErrPermission):
		e.Fix = "make it readable"
	}
	return e
}

// read returns the text of a file, at most maxFileSize bytes.
func (s *sources) read(ctx context.Context, f input) ([]byte, *Error) {
	switch {
	case f.regular:
		return readFile(f.name)
	case !f.stdin: // a pipe, such as a shell's <(...)
		return s.readOnce(ctx, f.name, func() ([]byte, *Error) { return readFile(f.name) })
	case s.stdin == nil:
		return nil, &Error{File: f.name, Message: "is not available", Fix: "name a file"}
	default:
		return s.readOnce(ctx, f.name, func() ([]byte, *Error) { return readBounded(f.name, s.stdin) })
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

// readOnce reads an input that can be read only once and may block, and keeps its text. It returns early when ctx ends;
// the read itself cannot be interrupted, and its goroutine ends with it.
func (s *sources) readOnce(ctx context.Context, name string, read func() ([]byte, *Error)) ([]byte, *Error) {
	s.mu.Lock()
	text, done := s.once[name]
	s.mu.Unlock()
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
			s.mu.Lock()
			s.once[name] = got.text
			s.mu.Unlock()
		}
		return got.text, got.err
	case <-ctx.Done():
		return nil, fileError(name, ctx.Err())
	}
}

// beingWritten reports whether a program has one of the files open for writing, so that the text may be incomplete.
func (s *sources) beingWritten() bool {
	for _, f := range s.files(new(Errors)) {
		if f.regular && openForWriting(f.name) {
			return true
		}
	}
	return false
}

// openForWriting reports whether a file is open for writing. The kernel grants a read lease (fcntl(2), F_SETLEASE) only
// on a file that is not. On a file system without leases the answer is false.
func openForWriting(name string) bool {
	file, err := os.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	if _, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return errors.Is(err, unix.EAGAIN)
	}
	_, _ = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // closing the file ends the lease as well
	return false
}
