// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"errors"
	"fmt"
	"io"
	"time"

	"wangell.loutres.me/internal/images/lazy/packed"
)

// The pauses after a request that failed. The pause doubles until one succeeds.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// transfer performs a request, whose blocks are marked as coming.
func (b *Blob) transfer(q *request) {
	lends := b.lends()
	first := b.beginning(q.run.from, lends)
	from, to := int64(q.run.from)*blockSize+first.size, min(int64(q.run.to)*blockSize, b.size)
	a, err := b.source.fetch(b.ctx, from, to, lends)
	if err == nil {
		if a.size != b.size {
			err = fmt.Errorf("the blob has %d bytes in one answer and %d in another", b.size, a.size)
		} else {
			err = b.receive(q, a, first, to)
		}
		a.Close()
	}
	b.end(q, err)
}

// beginning returns the part of a missing block that is present.
func (b *Blob) beginning(block int, lends bool) beginning {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	begun := b.begun[block]
	if begun.lent && !lends {
		return beginning{}
	}
	return begun
}

// receive writes the arriving bytes, block by block. first is the part of the first block that is present.
func (b *Blob) receive(q *request, a *answer, first beginning, to int64) error {
	buf := make([]byte, blockSize)
	for i := q.run.from; i < q.run.to; i++ {
		b.store.yield(q)
		off := int64(i)*blockSize + first.size
		p := buf[:min(blockSize-first.size, to-off)]
		lent := a.lent() || first.lent
		n, err := io.ReadFull(heardBody{a, b.store, q}, p)
		if _, failed := b.file.WriteAt(p[:n], off); failed != nil {
			return failed
		}
		if err != nil {
			b.source.broken.note(a.host, time.Now())
			b.store.begun(b, i, int64(n), beginning{first.size + int64(n), lent}, q.urgent, a.from)
			return fmt.Errorf("the answer ends early: %w", err)
		}
		mark := packed.Here
		if lent {
			mark = packed.Lent
		}
		if err := packed.Mark(b.notes, i, mark); err != nil {
			return err
		}
		b.store.arrived(b, i, int64(n), q.urgent, lent, a.from)
		first = beginning{}
	}
	return nil
}

// end is the end of a request.
func (b *Blob) end(q *request, err error) {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, q)
	b.blocks.set(q.run, missing)
	if b.last = err; err == nil {
		b.pause, b.failing = 0, false
	} else if b.ctx.Err() == nil {
		b.pause = min(max(firstPause, 2*b.pause), longestPause)
		b.after = time.Now().Add(b.pause)
		if limit := (*limitedError)(nil); errors.As(err, &limit) {
			b.limited = time.Now().Add(limit.after)
			b.after = b.limited
		}
		s.log.Debug("a request for a part of a layer failed", "image", b.image, "layer", b.source.digest,
			"error", err, "again in", b.pause)
	}
	if b.left == 0 && !b.checked {
		b.checked = true
		s.tasks.Go(b.check)
	}
	s.unpackAll()
	s.changed.Broadcast()
}

// beginCheck returns how often the blob was doubted; false if it is no longer complete.
func (b *Blob) beginCheck() (doubts int, ok bool) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	if b.left > 0 {
		b.checked = false
	}
	return b.doubts, b.left == 0
}

// check compares the whole blob with its digest. Earlier reads are compared with the digests of chunks.
func (b *Blob) check() {
	before, begun := b.beginCheck()
	if !begun {
		return
	}
	v := b.source.digest.Verifier()
	_, err := io.Copy(v, io.NewSectionReader(b.file, 0, b.size))
	if err == nil && !v.Verified() {
		err = errors.New("the registry's bytes do not have the digest: the layer is fetched again when it is mounted again")
		if doubts, _ := b.doubted(); doubts != before || b.distrust() {
			return // and checked once more
		}
	}
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.ctx.Err() != nil || b.whole || b.left > 0 {
		return // its files are closed, or parts of it were or are being fetched again, and another call checks it
	}
	if err == nil {
		err = b.file.Sync()
	}
	if err == nil {
		err = packed.Complete(b.notes)
	} else {
		err = errors.Join(err, packed.Spoil(b.notes))
	}
	if err != nil {
		s.fail(b, 0, err)
		return
	}
	clear(b.lent)
	b.borrows = 0
	b.whole = true
	s.stats.Complete++
	s.log.Info("a layer is complete", "image", b.image, "layer", b.source.digest, "bytes", b.size)
}

// heardBody is the body of a response. It records when bytes arrive.
type heardBody struct {
	io.Reader
	store   *Store
	request *request
}

// Read implements io.Reader.
func (h heardBody) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if n > 0 {
		h.store.mu.Lock()
		h.request.heard = time.Now()
		h.store.mu.Unlock()
	}
	return n, err
}
