// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// await returns once the blocks of r are present. Its patience begins anew whenever bytes arrive for the request that
// fetches the first missing block, and at the end of each pause that the registry asks for, for a while.
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
	begin, patience := time.Now(), s.patience
	timer := time.AfterFunc(patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changed.Broadcast()
	})
	defer func() {
		timer.Stop()
		s.waits.Observe(time.Since(begin).Seconds())
		s.waiting--
		s.changed.Broadcast()
	}()
	progress, heard := begin, begin
	var fetching *request
	for pause := time.Duration(0); ; {
		if fetching != nil && fetching.heard.After(progress) {
			progress, pause = fetching.heard, 0
			heard = progress
			timer.Reset(time.Until(progress.Add(patience)))
		}
		if b.limited.After(progress) && b.limited.Sub(heard) < limitedFor {
			progress = b.limited
			timer.Reset(time.Until(progress.Add(patience)))
		}
		i, lacks := b.blocks.lacking(r)
		switch {
		case !lacks:
			return nil
		case b.ctx.Err() != nil:
			return errors.New("the layer is no longer mounted")
		case time.Since(progress) >= patience:
			err := b.last
			if err == nil {
				err = errors.New("the registry is too slow")
			}
			b.expired++
			s.fail(b, int64(i)*blockSize, err)
			return fmt.Errorf("%s: no bytes from %d of layer %s arrived for %v: %w", b.image, int64(i)*blockSize,
				b.source.digest, patience, err)
		}
		if b.blocks[i] == missing {
			limit := min(max(aheadBlocks, r.to-i), pieceBlocks-i%pieceBlocks)
			q := &request{run: b.blocks.missingFrom(i, limit), urgent: true}
			b.cursor = q.run.to
			b.blocks.set(q.run, coming)
			s.running[q], fetching = b, q
			wait := max(pause, time.Until(b.limited))
			pause = min(max(firstPause, 2*pause), longestPause)
			s.tasks.Go(func() {
				if sleep(b.ctx, wait) {
					b.transfer(q)
				} else {
					b.end(q, b.ctx.Err())
				}
			})
		} else {
			fetching = s.hurry(b, i)
		}
		s.changed.Wait()
	}
}

// sleep waits; it returns false if ctx ends first.
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

// newWaits returns the histogram of the time that reads wait for missing bytes.
func newWaits() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: metricsPrefix + "wait_seconds", Help: "How long reads waited for bytes that were not on the node yet.",
		Buckets: []float64{0.005, 0.02, 0.1, 0.5, 2, 10, 30},
	})
}

const metricsPrefix = "wangell_image_lazy_"

// ReadAt implements io.ReaderAt. It returns once the bytes are present, however slowly they arrive, or with an error
// when none arrived for Config.Patience; until then, mirrors and the registry are asked repeatedly.
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
