// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"cmp"
	"strconv"
	"time"
)

// whenComplete calls unpack in the background once everything mounted is present, so that it does not compete with
// waiting reads for processors and the disk. Blobs are unpacked one after the other.
func (s *Store) whenComplete(b *Blob, unpack func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.unpack = unpack
	s.unpackAll()
}

// unpackAll begins to unpack if everything is present. s.mu is held.
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

// choose returns the blob to fetch from: of the incomplete ones, those that lack blocks of their plan come first, and
// among those the one that was read last. If there is none at the moment, it returns when to look again; 0: when
// something changes.
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

// before reports whether a is fetched before b.
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

// first plans to fetch the beginning of a blob first, after the blocks that were read earlier. text is its length in
// bytes.
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

// hurry lets the request that fetches a block continue although reads wait, because one of them waits for it, and
// returns the request.
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
