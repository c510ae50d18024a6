// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/containerd/stargz-snapshotter/metadata"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/lazy/trace"
)

// A layer is recorded until no further file was opened during learnQuiet, and at most for learnLongest from the first
// one: then its program is idle, or does what only some clients ask for.
const (
	learnQuiet   = 30 * time.Second
	learnLongest = trace.Longest
)

// Limits of recordings: files per layer, and layers. Beyond the latter, the oldest ones are forgotten.
const (
	mostFiles  = 10_000
	mostTraces = 2_000
)

// recorder records the reads of a layer. It begins with the recording of an earlier one.
type recorder struct {
	root  string
	layer digest.Digest
	log   *slog.Logger

	mu     sync.Mutex
	tree   metadata.Reader
	begun  bool
	trace  trace.Layer
	files  map[string]bool // of trace
	blocks map[int]bool    // likewise
	opened map[uint32]bool
	new    []uint32 // opened files that are not in trace yet
	first  time.Time
	last   time.Time
	timer  *time.Timer
	ended  bool
}

// newRecorder returns the recorder of a layer.
func newRecorder(root string, layer digest.Digest, log *slog.Logger) *recorder {
	r := &recorder{root: root, layer: layer, log: log, files: map[string]bool{}, blocks: map[int]bool{},
		opened: map[uint32]bool{}}
	var err error
	if r.trace, err = trace.Read(root, layer); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("the reads of a layer are recorded anew", "error", err)
		r.trace = trace.Layer{}
	}
	for _, f := range r.trace.Files {
		r.files[f] = true
	}
	for _, b := range r.trace.Blocks {
		r.blocks[b] = true
	}
	return r
}

// known returns the blocks that were read earlier.
func (r *recorder) known() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.trace.Blocks)
}

// names sets the tree from which the names of files are read.
func (r *recorder) names(tree metadata.Reader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tree = tree
}

// begin starts to note everything.
func (r *recorder) begin(image string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun, r.trace.Image = true, image
}

// open notes that a file was opened.
func (r *recorder) open(id uint32, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun || r.opened[id] || !r.learns(now) || len(r.trace.Files)+len(r.new) >= mostFiles {
		return
	}
	if r.first.IsZero() {
		r.first = now
	}
	r.last = now
	r.opened[id] = true
	r.new = append(r.new, id)
	r.later()
}

// learns reports whether recording continues.
func (r *recorder) learns(now time.Time) bool {
	return !r.ended && (r.first.IsZero() || now.Sub(r.last) < learnQuiet && now.Sub(r.first) < learnLongest)
}

// read records that blocks of the packed layer were read.
func (r *recorder) read(blocks run, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.begun || r.first.IsZero() || !r.learns(now) {
		return
	}
	for i := blocks.from; i < blocks.to; i++ {
		if !r.blocks[i] {
			r.blocks[i] = true
			r.trace.Blocks = append(r.trace.Blocks, i)
			r.later()
		}
	}
}

// later schedules writing the trace. r.mu is held.
func (r *recorder) later() {
	if r.timer == nil && !r.ended {
		r.timer = time.AfterFunc(trace.Delay, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.timer != nil {
				r.write()
			}
		})
	}
}

// end writes the rest and stops recording.
func (r *recorder) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.timer != nil && r.timer.Stop() {
		r.write()
	}
}

// write writes the trace. r.mu is held.
func (r *recorder) write() {
	r.timer = nil
	names := map[uint32]string{}
	if len(r.new) > 0 {
		nameFiles(r.tree, r.tree.RootID(), "", names)
	}
	for _, id := range r.new {
		if name := names[id]; name != "" && !r.files[name] {
			r.files[name] = true
			r.trace.Files = append(r.trace.Files, name)
		}
	}
	r.new = nil
	if err := r.trace.Write(r.root, r.layer); err != nil {
		r.log.Warn("the reads of a layer cannot be recorded", "layer", r.layer, "error", err)
	}
}

// paths returns the paths of files.
func (r *recorder) paths(ids []uint32) (paths []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(ids) == 0 || r.tree == nil {
		return nil
	}
	names := map[uint32]string{}
	nameFiles(r.tree, r.tree.RootID(), "/", names)
	for _, id := range ids {
		if name := names[id]; name != "" {
			paths = append(paths, name)
		}
	}
	return paths
}

// nameFiles adds the paths of the files in a directory.
func nameFiles(tree metadata.Reader, dir uint32, at string, names map[uint32]string) {
	// Only directories that the tree has itself are asked for.
	_ = tree.ForeachChild(dir, func(name string, id uint32, mode os.FileMode) bool {
		names[id] = path.Join(at, name)
		if mode.IsDir() {
			nameFiles(tree, id, names[id], names)
		}
		return true
	})
}
