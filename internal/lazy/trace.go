// SPDX-License-Identifier: Apache-2.0

package lazy

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

	"wangell.loutres.me/internal/atomicfile"
)

// Limits of what is recorded: files of a layer, and layers, of which the oldest are forgotten.
const (
	mostFiles  = 10_000
	mostTraces = 2_000
)

// Trace is what containers read first of a layer.
type Trace struct {
	// Image is a reference to the image that the layer was read for.
	Image string `json:"image"`
	// Files are the paths of the files that were opened, without a slash at the beginning, in the order of their first
	// use.
	Files []string `json:"files"`
	// Blocks are the parts of the packed layer that were read, in units of 256 KiB, in the same order.
	Blocks []int `json:"blocks"`
}

// traces returns the folder with the traces of a snapshotter's root.
func traces(root string) string { return filepath.Join(root, "traces") }

func traceFile(root string, layer digest.Digest) string {
	return filepath.Join(traces(root), layer.Encoded()+".json")
}

// ReadTrace returns the Trace of a layer in the folder of a Server (Config.Root). The error is fs.ErrNotExist if nobody
// has read the layer.
func ReadTrace(root string, layer digest.Digest) (t Trace, err error) {
	text, err := os.ReadFile(traceFile(root, layer))
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return t, fmt.Errorf("%s: %w", traceFile(root, layer), err)
	}
	return t, nil
}

func (t Trace) write(root string, layer digest.Digest) error {
	text, err := json.Marshal(t)
	if err == nil {
		err = os.MkdirAll(traces(root), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(traceFile(root, layer), text)
	}
	return err
}

// forgetTraces removes the oldest traces in a root beyond a number.
func forgetTraces(root string, keep int) error {
	files, err := os.ReadDir(traces(root))
	if errors.Is(err, fs.ErrNotExist) || len(files) <= keep {
		return nil
	}
	if err != nil {
		return err
	}
	slices.SortFunc(files, func(a, b fs.DirEntry) int { return modified(a).Compare(modified(b)) })
	for _, f := range files[:len(files)-keep] {
		err = errors.Join(err, os.Remove(filepath.Join(traces(root), f.Name())))
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
