// SPDX-License-Identifier: Apache-2.0

// Package trace records what containers read first of the layers of images. The lazy snapshotter writes it, and
// `image convert` rearranges images by it.
package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/base/atomicfile"
)

// Annotation is the annotation of a layer with the number of bytes at its beginning that are needed first. containerd
// hands annotations with this prefix on to snapshotters, as labels.
const Annotation = "containerd.io/snapshot/wangell.first"

// BlockSize is the unit of Layer.Blocks, in bytes.
const BlockSize = 256 << 10

const (
	// Longest is how long a layer is recorded at the most, from the first file that is opened.
	Longest = 5 * time.Minute
	// Delay is how long after a change the file is written: one write has many changes.
	Delay = time.Second
)

// Layer records what containers read first of a layer.
type Layer struct {
	// Image is the reference of the image that the layer was read for.
	Image string `json:"image"`
	// Files are the paths of the files that were opened, without a slash at the beginning, in the order of their first
	// use.
	Files []string `json:"files"`
	// Blocks are the parts of the packed layer that were read, in units of BlockSize, in the same order.
	Blocks []int `json:"blocks"`
}

// folder returns the folder with the traces of a snapshotter's root.
func folder(root string) string { return filepath.Join(root, "traces") }

func fileOf(root string, layer digest.Digest) string {
	return filepath.Join(folder(root), layer.Encoded()+".json")
}

// Read returns the recording of a layer in the folder of a snapshotter. The error is fs.ErrNotExist if nothing has
// read the layer.
func Read(root string, layer digest.Digest) (l Layer, err error) {
	text, err := os.ReadFile(fileOf(root, layer))
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(text, &l); err != nil {
		return l, fmt.Errorf("%s: %w", fileOf(root, layer), err)
	}
	return l, nil
}

// Write replaces what was recorded of a layer.
func (l Layer) Write(root string, layer digest.Digest) error {
	text, err := json.Marshal(l)
	if err == nil {
		err = os.MkdirAll(folder(root), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(fileOf(root, layer), text)
	}
	return err
}

// Prune removes the oldest recordings in a root until keep layers have one.
func Prune(root string, keep int) error {
	files, err := os.ReadDir(folder(root))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(files) <= keep {
		return err
	}
	slices.SortFunc(files, func(a, b fs.DirEntry) int { return modified(a).Compare(modified(b)) })
	for _, f := range files[:len(files)-keep] {
		err = errors.Join(err, os.Remove(filepath.Join(folder(root), f.Name())))
	}
	return err
}

func modified(f fs.DirEntry) time.Time {
	info, err := f.Info()
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
