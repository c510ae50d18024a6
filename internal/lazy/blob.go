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
	used    uint64 // the store's clock at the last read that waited
	pause   time.Duration
	after   time.Time      // no request in the background before
	last    error          // of the last request
	failing bool           // told as an event; until a request succeeds
	reading map[uint32]int // reads of files in progress
	checked bool           // all of it has been compared with its digest
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
			s.fail(b, int64(i)*blockSize, err)
			return fmt.Errorf("%s: bytes from %d of layer %s did not come for %v: %w", b.image, int64(i)*blockSize,
				b.source.digest, s.patience, err)
		}
		if b.blocks[i] == missing {
			q := &request{b.blocks.missingFrom(i, max(aheadBlocks, r.to-i)), true}
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
	body, size, err := b.source.fetch(b.ctx, from, to)
	if err == nil && size != b.size {
		err = fmt.Errorf("the blob has %d bytes in one answer and %d in another", b.size, size)
	}
	if err == nil {
		err = b.receive(q, body, to)
	}
	if body != nil {
		body.Close()
	}
	b.end(q, err)
}

// receive writes what comes, block by block.
func (b *Blob) receive(q *request, body io.Reader, to int64) error {
	buf := make([]byte, blockSize)
	for i := q.run.from; i < q.run.to; i++ {
		b.store.yield(q)
		off := int64(i) * blockSize
		p := buf[:min(blockSize, to-off)]
		if _, err := io.ReadFull(body, p); err != nil {
			return fmt.Errorf("the answer ends early: %w", err)
		}
		if _, err := b.file.WriteAt(p, off); err != nil {
			return err
		}
		if err := note(b.notes, i); err != nil {
			return err
		}
		b.store.arrived(b, i, int64(len(p)), q.urgent)
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

// check compares the whole blob with its digest. What is read from it before is compared with the digests of chunks.
func (b *Blob) check() {
	v := b.source.digest.Verifier()
	_, err := io.Copy(v, io.NewSectionReader(b.file, 0, b.size))
	if err == nil && !v.Verified() {
		err = errors.New("what the registry sent is not what the digest says: it is fetched again when it is mounted again")
	}
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.ctx.Err() != nil {
		return // its files are closed
	}
	if err == nil {
		err = b.file.Sync()
	}
	if err == nil {
		err = complete(b.notes)
	} else {
		err = errors.Join(err, spoil(b.notes))
	}
	if err != nil {
		s.fail(b, 0, err)
		return
	}
	s.stats.Complete++
	s.log.Info("a layer is complete", "image", b.image, "layer", b.source.digest, "bytes", b.size)
}
