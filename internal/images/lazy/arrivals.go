// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"maps"
	"slices"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/images/lazy/failures"
)

// begun is called after the beginning of an incomplete block was written, with the number of bytes that have just
// come from a source.
func (s *Store) begun(b *Blob, block int, n int64, all beginning, urgent bool, from string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 {
		b.begun[block] = all
	}
	s.count(n, urgent, from)
}

// arrived is called after a block was written, with the number of its bytes that have just come from a source.
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

// fail reports files that cannot be read: once, until a request for the blob succeeds. s.mu is held.
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

// reads records that a file of b is being read, until the caller calls done.
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
