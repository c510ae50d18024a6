// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/lazy/failures"
	"wangell.loutres.me/internal/lazy/packed"
	"wangell.loutres.me/internal/lazy/trace"
	"wangell.loutres.me/internal/monotime"
)

// Stats counts what a Store did.
type Stats struct {
	// Blobs are open, Complete were checked as a whole.
	Blobs, Complete int
	// Waits are reads that had to wait for the registry, Failures those that ended with an error.
	Waits, Failures int
	// UrgentBytes came for reads that waited, BackgroundBytes before anybody wanted them.
	UrgentBytes, BackgroundBytes int64
	// Sources are the same bytes by their source: fromNode, fromPeer, fromMirror and fromRegistry.
	Sources map[string]int64
	// Distrusted is how often layers were found wrong that parts of had come from the node's mirror.
	Distrusted int
	// Missing is how many bytes of the open blobs are not here, in whole blocks.
	Missing int64
}

// Store keeps the blobs that are mounted, and fetches all of them. Reads that wait go first: what is fetched in the
// background pauses meanwhile.
type Store struct {
	root     string // of traces
	dir      string
	piece    int // blocks of a request in the background
	patience time.Duration
	settle   time.Duration
	log      *slog.Logger
	failed   func(failures.Failure)

	mu      sync.Mutex
	changed *sync.Cond // anything below, or a block
	blobs   map[digest.Digest]*Blob
	loading map[digest.Digest]bool // will be in blobs
	early   map[digest.Digest]bool // opened ahead
	ctx     context.Context        // until close
	cancel  context.CancelFunc
	running map[*request]*Blob
	waiting int // reads
	clock   uint64
	opened  time.Time // when a blob was last opened
	stats   Stats
	waits   prometheus.Histogram
	closed  bool
	// unpacking is set while blobs are unpacked in the background.
	unpacking bool
	tasks     sync.WaitGroup
}

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
	return s, nil
}

// open returns the blob of a source, for one mount more. It needs no registry if the folder has something of the blob.
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

// ahead opens the blob of a source in the background, and calls read, which prepares a mount. What that returns is
// called once the blob is mounted, or after a while, when it is let go of. Layers that are open are left alone.
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

// awaitMount returns once a blob that was opened ahead is open for a mount too; false if ctx ends before.
func (s *Store) awaitMount(ctx context.Context, b *Blob) bool {
	defer context.AfterFunc(ctx, s.changed.Broadcast)()
	s.mu.Lock()
	defer s.mu.Unlock()
	for b.refs < 2 && ctx.Err() == nil {
		s.changed.Wait()
	}
	return b.refs >= 2
}

// whenComplete has unpack called in the background once everything that is mounted is here: then it does not take
// processors and the disk from what is awaited. Blobs are unpacked one after the other.
func (s *Store) whenComplete(b *Blob, unpack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.unpack = unpack
	s.unpackAll()
}

// unpackAll begins to unpack if it is time to. s.mu is held.
func (s *Store) unpackAll() {
	if s.unpacking || s.closed {
		return
	}
	for _, b := range s.blobs {
		if b.left > 0 {
			return
		}
	}
	s.unpacking = true
	s.tasks.Go(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for next := s.packed(); next != nil && !s.closed; next = s.packed() {
			s.mu.Unlock()
			next()
			s.mu.Lock()
		}
		s.unpacking = false
	})
}

// packed returns the function that unpacks a blob, once; nil if there is none.
func (s *Store) packed() func() {
	for _, b := range s.blobs {
		if unpack := b.unpack; unpack != nil && b.left == 0 && b.refs > 0 {
			b.unpack = nil
			return unpack
		}
	}
	return nil
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
	// Somewhere: nodes that mount an image at once have different parts to exchange.
	b.cursor = rand.IntN(n)
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// release is the end of a mount of b. With the last one the files go, unless they are to be kept.
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

// abort ends all requests, and with an error what waits for them.
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

// choose returns the blob of which to fetch something: of those that lack something, one that lacks what is wanted
// first, and of those the one that was read last. If there is none at the moment, it returns when to look again;
// 0: when something changes.
func (s *Store) choose(now time.Time) (best *Blob, later time.Duration) {
	if s.waiting > 0 {
		return nil, 0
	}
	if wait := s.opened.Add(s.settle).Sub(now); wait > 0 {
		return nil, wait
	}
	for _, b := range s.blobs {
		if r := b.blocks.next(b.cursor, 1); r.from == r.to {
			continue
		}
		if wait := b.after.Sub(now); wait > 0 {
			if later == 0 || wait < later {
				later = wait
			}
			continue
		}
		if best == nil || before(b, best) {
			best = b
		}
	}
	return best, later
}

// before reports whether something of a is fetched before something of b.
func before(a, b *Blob) bool {
	first := func(b *Blob) int {
		if r := b.plan.next(b.blocks, 1); r.from < r.to {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(b.used, a.used),
		cmp.Compare(a.order, b.order)) < 0
}

// first has the beginning of a blob fetched first, besides what was read earlier: as many bytes as a text says.
func (s *Store) first(b *Blob, text string) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return
	}
	r := blocksOf(0, min(n, b.size))
	wanted := make([]int, 0, r.to)
	for i := range r.to {
		wanted = append(wanted, i)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.plan.add(len(b.blocks), wanted)
}

// hurry makes the request that fetches a block go on although reads wait, and returns it: one waits for it.
func (s *Store) hurry(b *Blob, block int) *request {
	for q, of := range s.running {
		if of == b && q.run.from <= block && block < q.run.to {
			if !q.urgent {
				q.urgent = true
				s.changed.Broadcast()
			}
			return q
		}
	}
	return nil
}

// yield returns when a request may go on.
func (s *Store) yield(q *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.waiting > 0 && !q.urgent && !s.closed {
		s.changed.Wait()
	}
}

// begun is called for a block of which only the beginning came, after that was written, with how many bytes of it came
// from a source just now.
func (s *Store) begun(b *Blob, block int, n int64, all beginning, urgent bool, from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 {
		b.begun[block] = all
	}
	s.count(n, urgent, from)
}

// arrived is called for each block, after it was written, with how many bytes of it came from a source just now.
func (s *Store) arrived(b *Blob, block int, n int64, urgent, lent bool, from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(b.begun, block)
	if b.blocks[block] != here {
		b.blocks[block] = here
		b.left--
	}
	if lent != b.lent[block] {
		b.lent[block] = lent
		if b.borrows--; lent {
			b.borrows += 2
		}
	}
	s.count(n, urgent, from)
	s.changed.Broadcast()
}

// count counts bytes that came from a source. s.mu is held.
func (s *Store) count(n int64, urgent bool, from string) {
	s.stats.Sources[from] += n
	if urgent {
		s.stats.UrgentBytes += n
	} else {
		s.stats.BackgroundBytes += n
	}
}

// fail tells that files cannot be read: once, until a request for the blob succeeds. s.mu is held.
func (s *Store) fail(b *Blob, off int64, err error) {
	s.stats.Failures++
	if b.failing {
		return
	}
	b.failing = true
	f := failures.Failure{
		Image: b.image, Layer: b.source.digest.String(), Registry: b.source.ref.Hostname(), Offset: off, Cause: err.Error(),
		At: monotime.Now(),
	}
	reading := slices.Sorted(maps.Keys(b.reading))
	go func() {
		f.Files = b.recorder.paths(reading)
		s.log.Error("files of an image cannot be read", "image", f.Image, "files", f.Files, "layer", f.Layer, "offset", off,
			"error", err)
		if s.failed != nil {
			s.failed(f)
		}
	}()
}

// reads notes that a file of b is being read, until the caller calls done.
func (b *Blob) reads(id uint32) (done func()) {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.reading == nil {
		b.reading = map[uint32]int{}
	}
	b.reading[id]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if b.reading[id]--; b.reading[id] == 0 {
			delete(b.reading, id)
		}
	}
}
