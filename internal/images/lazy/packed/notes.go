// SPDX-License-Identifier: Apache-2.0

// Package packed defines how wangell-snapshotter keeps packed layers on disk: a sparse file for each, and a file of
// notes beside it, which says which blocks are present. The daemon of the node reads both to send parts to other
// nodes.
package packed

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/images/lazy/trace"
)

// BlockSize is the unit in which bytes of a layer are present or missing, in bytes.
const BlockSize = trace.BlockSize

// Marks of a block in the notes.
const (
	Missing byte = 0
	Here    byte = 1
	// Lent blocks are present as well, but came from the node's mirror or another node, and the layer is not verified
	// yet: if something is wrong with it, they are fetched again from the registry.
	Lent byte = 2
)

// The notes are a header and a mark for each block. The header has the layer's size, and the boot in which it was
// written, because a reboot loses what the kernel had not written to disk.
const (
	bootLength   = 36
	headerLength = bootLength + 8
)

// wholeBoot takes the place of the boot for a layer that is complete, verified and on disk.
var wholeBoot = strings.Repeat("*", bootLength)

// Notes are what a file of notes says.
type Notes struct {
	Size  int64
	Marks []byte // one for each block
	// Whole is set if the layer is complete and verified.
	Whole bool
}

// Count returns the number of blocks of a layer of size bytes.
func Count(size int64) int { return int((size + BlockSize - 1) / BlockSize) }

// Dir returns the folder of packed layers in the snapshotter's root.
func Dir(root string) string { return filepath.Join(root, "blobs") }

// Paths returns the paths of a layer's file and of its notes.
func Paths(dir string, d digest.Digest) (file, notes string) {
	file = filepath.Join(dir, d.Encoded())
	return file, file + notesSuffix
}

const notesSuffix = ".notes"

// Begin writes the notes of a layer without any block.
func Begin(f *os.File, size int64) error {
	boot, err := thisBoot()
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(append(binary.BigEndian.AppendUint64([]byte(boot), uint64(size)),
		make([]byte, Count(size))...), 0)
	return err
}

// Recall reads notes. It returns false if they are from an earlier boot.
func Recall(f *os.File) (n Notes, ok bool) {
	text := new(bytes.Buffer)
	if _, err := text.ReadFrom(f); err != nil || text.Len() < headerLength {
		return n, false
	}
	boot, err := thisBoot()
	if err != nil {
		return n, false
	}
	header := text.Next(headerLength)
	n.Whole = string(header[:bootLength]) == wholeBoot
	n.Size = int64(binary.BigEndian.Uint64(header[bootLength:]))
	if !n.Whole && string(header[:bootLength]) != boot || n.Size <= 0 || text.Len() != Count(n.Size) {
		return Notes{}, false
	}
	n.Marks = text.Bytes()
	return n, true
}

// Mark sets the mark of a block.
func Mark(f *os.File, block int, mark byte) error {
	_, err := f.WriteAt([]byte{mark}, headerLength+int64(block))
	return err
}

// Complete records that the layer is complete, verified and on disk.
func Complete(f *os.File) error {
	if _, err := f.WriteAt([]byte(wholeBoot), 0); err != nil {
		return err
	}
	return f.Sync()
}

// Spoil makes Recall fail.
func Spoil(f *os.File) error { return f.Truncate(0) }

// Look returns the notes of a layer; false if there are none of this boot.
func Look(dir string, d digest.Digest) (Notes, bool) {
	_, path := Paths(dir, d)
	f, err := os.Open(path)
	if err != nil {
		return Notes{}, false
	}
	defer f.Close()
	return Recall(f)
}

// Open opens the file of a layer if a range of it is present.
func Open(dir string, d digest.Digest, offset, length int64) (*os.File, Notes, error) {
	path, _ := Paths(dir, d)
	f, err := os.Open(path) // opened before the notes: the marks belong to this file, or to one that has been removed
	if err != nil {
		return nil, Notes{}, err
	}
	n, ok := Look(dir, d)
	if !ok || !n.Covers(offset, length) {
		f.Close()
		return nil, Notes{}, os.ErrNotExist
	}
	return f, n, nil
}

// Covers reports whether a range of the layer is present.
func (n Notes) Covers(offset, length int64) bool {
	if offset < 0 || length <= 0 || offset > n.Size-length {
		return false
	}
	for b := offset / BlockSize; b <= (offset+length-1)/BlockSize; b++ {
		if n.Marks[b] == Missing {
			return false
		}
	}
	return true
}

// thisBoot returns the id of this boot.
func thisBoot() (string, error) {
	id, err := monotime.BootID()
	if err == nil && len(id) != bootLength {
		err = fmt.Errorf("id of this boot: %q", id)
	}
	return id, err
}
