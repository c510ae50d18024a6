// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// entries calls f with each entry of an archive and its number. Reading continues after f returns.
func entries(archive io.Reader, f func(i int, h *tar.Header, content io.Reader) error) error {
	in := tar.NewReader(archive)
	for i := 0; ; i++ {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, archive) // its padding belongs to it
			return err
		}
		if err != nil {
			return fmt.Errorf("read the layer's archive: %w", err)
		}
		if err := f(i, h, in); err != nil {
			return err
		}
	}
}

// headersOf returns the headers of an archive.
func headersOf(archive io.Reader) ([]*tar.Header, error) {
	var all []*tar.Header
	err := entries(archive, func(_ int, h *tar.Header, _ io.Reader) error {
		all = append(all, h)
		return nil
	})
	return all, err
}

// writer writes the pieces of a plan.
type writer struct {
	plan *pieces
	dir  string // for their archives
	// done is called with the file of each piece, in any order. It may block, and must remove the file.
	done func(piece int, file string) error

	open map[int]*pieceFile
}

// pieceFile is the archive of a piece that is being written.
type pieceFile struct {
	file *os.File
	buf  *bufio.Writer
	tar  *tar.Writer
	dirs map[*node]bool // that are in it
}

// write writes the pieces, given the archives of the run's layers.
func (w *writer) write(layers []func() (io.ReadCloser, error)) (err error) {
	w.open = map[int]*pieceFile{}
	defer func() {
		for _, p := range w.open { // there are none unless an error occurred
			p.file.Close()
			_ = os.Remove(p.file.Name())
		}
	}()
	if err := w.writeWhiteouts(); err != nil {
		return err
	}
	for l, open := range layers {
		archive, err := open()
		if err != nil {
			return err
		}
		err = entries(archive, func(i int, h *tar.Header, content io.Reader) error {
			a := w.plan.atoms[place{l, i}]
			if a == nil {
				return nil
			}
			if err := w.writeAtom(a, content); err != nil {
				return fmt.Errorf("%s: %w", h.Name, err)
			}
			return w.finish(a.piece, 1)
		})
		if e := archive.Close(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// piece returns the archive of a piece.
func (w *writer) piece(number int) (*pieceFile, error) {
	if p := w.open[number]; p != nil {
		return p, nil
	}
	f, err := os.CreateTemp(w.dir, "piece-")
	if err != nil {
		return nil, err
	}
	p := &pieceFile{file: f, buf: bufio.NewWriterSize(f, bufferSize), dirs: map[*node]bool{}}
	p.tar = tar.NewWriter(p.buf)
	w.open[number] = p
	return p, nil
}

// finish counts the atoms of a piece that are written, and hands it over after the last one.
func (w *writer) finish(number, written int) error {
	w.plan.left[number] -= written
	if w.plan.left[number] > 0 {
		return nil
	}
	p := w.open[number]
	delete(w.open, number)
	err := errors.Join(p.tar.Close(), p.buf.Flush(), p.file.Close())
	if err != nil {
		_ = os.Remove(p.file.Name())
		return err
	}
	return w.done(number, p.file.Name())
}

// writeWhiteouts writes the whiteouts into the first piece, with the directories that contain them.
func (w *writer) writeWhiteouts() error {
	gone, opaque := w.plan.whiteouts()
	p, err := w.piece(0)
	if err != nil {
		return err
	}
	for _, n := range w.plan.bare() {
		n.dir = &plainDir
		if err := p.addParents(n); err != nil {
			return err
		}
	}
	mark := func(dir *node, name string) error {
		if err := p.addParents(dir); err != nil {
			return err
		}
		return p.tar.WriteHeader(&tar.Header{
			Typeflag: tar.TypeReg, Name: filepath.Join(dir.path(), name), ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
		})
	}
	for _, n := range gone {
		if err := mark(n.parent, whiteoutPrefix+n.name); err != nil {
			return err
		}
	}
	for _, n := range opaque {
		if n.dir == nil && n.hides {
			n.dir = &plainDir // the directory of lower layers has other attributes
		}
		if err := mark(n, opaqueName); err != nil {
			return err
		}
	}
	if w.plan.left[0] == 0 {
		return w.finish(0, 0)
	}
	return nil
}

// addParents adds a directory and its parents, unless they are in the piece already or no entry describes them.
func (p *pieceFile) addParents(n *node) error {
	if n == nil || p.dirs[n] {
		return nil
	}
	if err := p.addParents(n.parent); err != nil {
		return err
	}
	p.dirs[n] = true
	if n.dir == nil {
		return nil
	}
	return p.tar.WriteHeader(outHeader(*n.dir, n.path()))
}

func (w *writer) writeAtom(a *atom, content io.Reader) error {
	p, err := w.piece(a.piece)
	if err != nil {
		return err
	}
	if a.dir != nil {
		return p.addParents(a.dir)
	}
	var first string
	for i, n := range a.inode.names {
		if err := p.addParents(n.parent); err != nil {
			return err
		}
		h := outHeader(a.inode.header, n.path())
		if i > 0 {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else {
			first = h.Name
		}
		if err := p.tar.WriteHeader(h); err != nil {
			return err
		}
		if i == 0 && h.Typeflag == tar.TypeReg {
			if _, err := io.Copy(p.tar, content); err != nil {
				return err
			}
		}
	}
	return nil
}
