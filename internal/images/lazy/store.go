// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/lazy/packed"
	"wangell.loutres.me/internal/images/lazy/trace"
)

// newStore returns the store. The Config has its defaults.
func newStore(cfg Config) (*Store, error) {
	dir := packed.Dir(cfg.Root)
	if err := errors.Join(os.MkdirAll(dir, 0o700), trace.Prune(cfg.Root, mostTraces)); err != nil {
		return nil, err
	}
	s := &Store{root: cfg.Root, dir: dir, piece: count(cfg.Piece), patience: cfg.Patience, settle: cfg.Settle,
		log: cfg.Log, failed: cfg.Failed,
		blobs:   map[digest.Digest]*Blob{},
		loading: map[digest.Digest]bool{}, running: map[*request]*Blob{}}
	s.waits = newWaits()
	s.stats.Sources = map[string]int64{}
	s.early = map[digest.Digest]bool{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.changed = sync.NewCond(&s.mu)
	for range cfg.Workers {
		s.tasks.Go(s.work)
	}
	s.unpacks = make(chan func())
	for range runtime.GOMAXPROCS(0) { // as many as package reader unpacks at once
		s.tasks.Go(s.unpackThread)
	}
	return s, nil
}

// open returns the blob of a source for one more mount. It needs no registry if the folder has a part of the blob.
func (s *Store) open(ctx context.Context, from source, image string) (*Blob, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := from.digest
	s.opened = time.Now()
	defer func() { s.opened = time.Now() }()
	for s.loading[d] || s.blobs[d] != nil && s.blobs[d].refs == 0 {
		s.changed.Wait()
	}
	if s.blobs[d] == nil {
		s.loading[d] = true
		s.mu.Unlock()
		b, err := s.load(ctx, from, image)
		s.mu.Lock()
		delete(s.loading, d)
		s.changed.Broadcast()
		if err == nil && s.closed {
			b.close()
			err = errors.New("the snapshotter is shutting down")
		}
		if err != nil {
			return nil, err
		}
		s.blobs[d] = b
		s.stats.Blobs++
	}
	s.blobs[d].refs++
	s.changed.Broadcast()
	return s.blobs[d], nil
}

// ahead opens the blob of a source in the background, and calls read, which prepares a mount. The function that read
// returns is called once the blob is mounted or, after a while, released. Open layers are left alone.
func (s *Store) ahead(from source, image string, keep time.Duration,
	read func(context.Context, *Blob) func(mounted bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.loading[from.digest] || s.blobs[from.digest] != nil || s.early[from.digest] {
		return
	}
	s.early[from.digest] = true
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, keep)
		defer cancel()
		b, err := s.open(ctx, from, image)
		if err == nil {
			end := read(ctx, b)
			end(s.awaitMount(ctx, b))
			err = s.release(b, s.ctx.Err() != nil)
		}
		if err != nil {
			s.log.Debug("a layer cannot be opened ahead of its mount", "layer", from.digest, "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.early, from.digest)
	})
}

// awaitMount returns true once a blob that was opened ahead is also open for a mount; false if ctx ends first.
func (s *Store) awaitMount(ctx context.Context, b *Blob) bool {
	defer context.AfterFunc(ctx, s.changed.Broadcast)()
	s.mu.Lock()
	defer s.mu.Unlock()
	for b.refs < 2 && ctx.Err() == nil {
		s.changed.Wait()
	}
	return b.refs >= 2
}

// load opens or makes the files of a blob.
func (s *Store) load(ctx context.Context, from source, image string) (_ *Blob, err error) {
	b := &Blob{store: s, source: from, image: image, order: rand.Uint64(), begun: map[int]beginning{}}
	b.source.stall = min(stall, s.patience/3)
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	file, notesFile := packed.Paths(s.dir, from.digest)
	if b.file, err = os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	if b.notes, err = os.OpenFile(notesFile, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	notes, known := packed.Recall(b.notes)
	if !known {
		size := from.sizeFrom(ctx)
		if size <= 0 {
			a, err := from.fetch(ctx, 0, 1, true)
			if err != nil {
				return nil, err
			}
			a.Close()
			if size = a.size; size == 0 {
				return nil, errors.New("the blob is empty")
			}
		}
		if err := packed.Begin(b.notes, size); err != nil {
			return nil, err
		}
		notes = packed.Notes{Size: size, Marks: make([]byte, count(size))}
	}
	if err := b.file.Truncate(notes.Size); err != nil {
		return nil, err
	}
	n := len(notes.Marks)
	b.size, b.checked, b.blocks, b.lent = notes.Size, notes.Whole, make(blocks, n), make([]bool, n)
	for i, mark := range notes.Marks {
		if mark == packed.Missing {
			b.left++
			continue
		}
		b.blocks[i] = here
		if mark == packed.Lent && !notes.Whole {
			b.lent[i] = true
			b.borrows++
		}
	}
	b.recorder = newRecorder(s.root, from.digest, s.log)
	b.plan.add(n, b.recorder.known())
	// A random place: nodes that mount an image at the same time then have different parts to exchange.
	b.cursor = rand.IntN(n)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// release ends a mount of b. The last one removes the files, unless they should be kept.
func (s *Store) release(b *Blob, keep bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.refs--; b.refs > 0 {
		return nil
	}
	b.cancel()
	s.changed.Broadcast()
	for s.busy(b) {
		s.changed.Wait()
	}
	defer s.changed.Broadcast()
	delete(s.blobs, b.source.digest)
	s.stats.Blobs--
	b.close()
	if keep {
		return nil
	}
	file, notes := packed.Paths(s.dir, b.source.digest)
	return errors.Join(os.Remove(file), os.Remove(notes))
}

// busy reports whether a request for b runs.
func (s *Store) busy(b *Blob) bool {
	for _, of := range s.running {
		if of == b {
			return true
		}
	}
	return false
}

func (b *Blob) close() {
	if b.cancel != nil {
		b.cancel()
	}
	if b.recorder != nil {
		b.recorder.end()
	}
	for _, f := range []*os.File{b.file, b.notes} {
		if f != nil {
			f.Close()
		}
	}
}

// removeOthers removes the files of blobs that are not open.
func (s *Store) removeOthers() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := map[string]bool{}
	for d := range s.blobs {
		file, notes := packed.Paths("", d)
		keep[file], keep[notes] = true, true
	}
	files, err := os.ReadDir(s.dir)
	errs := []error{err}
	for _, f := range files {
		if !keep[f.Name()] {
			errs = append(errs, os.Remove(filepath.Join(s.dir, f.Name())))
		}
	}
	return errors.Join(errs...)
}

// abort ends all requests, and fails the reads that wait for them.
func (s *Store) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.cancel()
	for _, b := range s.blobs {
		b.cancel()
	}
	s.changed.Broadcast()
}

// close ends everything. Files stay.
func (s *Store) close() {
	s.abort()
	s.tasks.Wait()
}

// work fetches in the background.
func (s *Store) work() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed {
		b, later := s.choose(time.Now())
		if b == nil {
			if later > 0 {
				timer := time.AfterFunc(later, s.changed.Broadcast)
				s.changed.Wait()
				timer.Stop()
			} else {
				s.changed.Wait()
			}
			continue
		}
		q := &request{run: b.plan.next(b.blocks, s.piece)}
		if q.run.from == q.run.to {
			q.run = b.blocks.next(b.cursor, s.piece)
			b.cursor = q.run.to
		}
		b.blocks.set(q.run, coming)
		s.running[q] = b
		s.mu.Unlock()
		b.transfer(q)
		s.mu.Lock()
	}
}
