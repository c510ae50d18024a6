// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containerd/stargz-snapshotter/fs/layer"

	"wangell.loutres.me/internal/lazy/packed"
)

// The pauses after a request that failed. The pause doubles until one succeeds.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// Blob is a layer, packed, of which the bytes are in a sparse file as far as they have come. Its fields are guarded by
// the store's mutex, but for those that never change.
type Blob struct {
	store  *Store
	source source
	image  string // as the pull named it
	order  uint64 // among blobs of which nothing was read, at random: nodes begin with different ones
	size   int64
	file   *os.File
	notes  *os.File // which blocks are here

	resolver *layer.Resolver // guarded by the filesystem
	recorder *recorder

	refs    int    // mounts
	unpack  func() // called once all that is mounted is here; nil: done, or not wanted
	blocks  blocks
	left    int    // blocks that are not here
	plan    plan   // what the background fetches first
	cursor  int    // where the background goes on
	lent    []bool // blocks: from the node's mirror, and not verified
	borrows int    // their number
	expired int    // reads that waited in vain
	doubts  int    // how often some of those were wrong
	wary    bool   // some of those were wrong: only the registry is asked
	used    uint64 // the store's clock at the last read that waited
	pause   time.Duration
	after   time.Time      // no request in the background before
	last    error          // of the last request
	failing bool           // told as an event; until a request succeeds
	reading map[uint32]int // reads of files in progress
	checked bool           // all of it is being compared with its digest, or has been
	whole   bool           // it has its digest
	ctx     context.Context
	cancel  context.CancelFunc
}

// request is one that runs.
type request struct {
	run    run
	urgent bool // a read waits for it
}

// ReadAt implements io.ReaderAt. It returns once the bytes are here, or with an error when they could not be had for
// Config.Patience; the registry is asked again and again until then.
func (b *Blob) ReadAt(p []byte, off int64) (int, error) {
	want := min(int64(len(p)), b.size-off)
	if off < 0 || want < 0 {
		return 0, fmt.Errorf("read at %d of %d bytes", off, b.size)
	}
	if err := b.await(blocksOf(off, want)); err != nil {
		return 0, err
	}
	n, err := b.file.ReadAt(p[:want], off)
	if err == nil && want < int64(len(p)) {
		err = io.EOF
	}
	return n, err
}

// await returns once the blocks of r are here.
func (b *Blob) await(r run) error {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, lacks := b.blocks.lacking(r); !lacks {
		return nil
	}
	s.clock++
	b.used = s.clock
	s.waiting++
	s.stats.Waits++
	begin := time.Now()
	expired := false
	timer := time.AfterFunc(s.patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		expired = true
		s.changed.Broadcast()
	})
	defer func() {
		timer.Stop()
		s.waits.Observe(time.Since(begin).Seconds())
		s.waiting--
		s.changed.Broadcast()
	}()
	for pause := time.Duration(0); ; {
		i, lacks := b.blocks.lacking(r)
		switch {
		case !lacks:
			return nil
		case b.ctx.Err() != nil:
			return errors.New("the layer is no longer mounted")
		case expired:
			err := b.last
			if err == nil {
				err = errors.New("the registry is too slow")
			}
			b.expired++
			s.fail(b, int64(i)*blockSize, err)
			return fmt.Errorf("%s: bytes from %d of layer %s did not come for %v: %w", b.image, int64(i)*blockSize,
				b.source.digest, s.patience, err)
		}
		if b.blocks[i] == missing {
			limit := min(max(aheadBlocks, r.to-i), pieceBlocks-i%pieceBlocks)
			q := &request{b.blocks.missingFrom(i, limit), true}
			b.cursor = q.run.to
			b.blocks.set(q.run, coming)
			s.running[q] = b
			wait := pause
			pause = min(max(firstPause, 2*pause), longestPause)
			s.tasks.Go(func() {
				if sleep(b.ctx, wait) {
					b.transfer(q)
				} else {
					b.end(q, b.ctx.Err())
				}
			})
		} else {
			s.hurry(b, i)
		}
		s.changed.Wait()
	}
}

// sleep waits; it returns false if ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// transfer does a request, whose blocks are marked as coming.
func (b *Blob) transfer(q *request) {
	from, to := int64(q.run.from)*blockSize, min(int64(q.run.to)*blockSize, b.size)
	a, err := b.source.fetch(b.ctx, from, to, b.lends())
	if err == nil {
		if a.size != b.size {
			err = fmt.Errorf("the blob has %d bytes in one answer and %d in another", b.size, a.size)
		} else {
			err = b.receive(q, a, to)
		}
		a.Close()
	}
	b.end(q, err)
}

// receive writes what comes, block by block.
func (b *Blob) receive(q *request, a *answer, to int64) error {
	buf := make([]byte, blockSize)
	for i := q.run.from; i < q.run.to; i++ {
		b.store.yield(q)
		off := int64(i) * blockSize
		p := buf[:min(blockSize, to-off)]
		if _, err := io.ReadFull(a, p); err != nil {
			return fmt.Errorf("the answer ends early: %w", err)
		}
		if _, err := b.file.WriteAt(p, off); err != nil {
			return err
		}
		mark := packed.Here
		if a.lent() {
			mark = packed.Lent
		}
		if err := packed.Mark(b.notes, i, mark); err != nil {
			return err
		}
		b.store.arrived(b, i, int64(len(p)), q.urgent, a)
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

// beginCheck returns how often the blob was doubted; false if it is not complete any more.
func (b *Blob) beginCheck() (doubts int, ok bool) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	if b.left > 0 {
		b.checked = false
	}
	return b.doubts, b.left == 0
}

// check compares the whole blob with its digest. What is read from it before is compared with the digests of chunks.
func (b *Blob) check() {
	before, begun := b.beginCheck()
	if !begun {
		return
	}
	v := b.source.digest.Verifier()
	_, err := io.Copy(v, io.NewSectionReader(b.file, 0, b.size))
	if err == nil && !v.Verified() {
		err = errors.New("what the registry sent is not what the digest says: it is fetched again when it is mounted again")
		if doubts, _ := b.doubted(); doubts != before || b.distrust() {
			return // and checked once more
		}
	}
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.ctx.Err() != nil || b.whole || b.left > 0 {
		return // its files are closed, or something of it was fetched again, or is, and it is checked by another one
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
