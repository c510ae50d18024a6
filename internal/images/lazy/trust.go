// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"errors"
	"io"

	"github.com/containerd/stargz-snapshotter/metadata"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/lazy/packed"
)

// lends reports whether unverified bytes are accepted from the node's mirror.
func (b *Blob) lends() bool {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return !b.wary
}

// distrust discards what came from the node's mirror, because something is wrong with the layer: it is fetched again
// from the registry. It returns false if nothing came from there.
func (b *Blob) distrust() bool {
	s := b.store
	s.mu.Lock()
	defer s.mu.Unlock()
	again := 0
	if b.ctx.Err() != nil {
		return false // its files are closed
	}
	for i, lent := range b.lent {
		if !lent || b.blocks[i] != here {
			continue
		}
		again++
		b.blocks[i], b.lent[i] = missing, false
		b.left++
		if err := packed.Mark(b.notes, i, packed.Missing); err != nil {
			s.log.Warn("the notes of a layer cannot be written", "layer", b.source.digest, "error", err)
		}
	}
	if again == 0 {
		return false
	}
	b.borrows -= again
	b.wary, b.checked = true, false
	b.doubts++
	s.stats.Distrusted++
	s.log.Warn("other nodes have sent wrong bytes of a layer: what they sent is fetched again, from the registry",
		"image", b.image, "layer", b.source.digest, "blocks", again)
	s.changed.Broadcast()
	return true
}

// borrowed reports whether an unverified part of the blob came from the node's mirror.
func (b *Blob) borrowed() bool {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return b.borrows > 0
}

// retried calls try, and repeats it if bytes from the node's mirror may be the reason of a failure.
func (b *Blob) retried(try func() error) error {
	for range mostTries - 1 {
		doubts, expired := b.doubted()
		err := try()
		if err == nil {
			return nil
		}
		if _, now := b.doubted(); now != expired {
			return err // bytes are missing: nothing is wrong with those present
		}
		if now, _ := b.doubted(); now == doubts && !b.distrust() {
			return err
		}
	}
	return try()
}

// mostTries bounds the attempts: bytes requested from the mirror before the first failure may arrive after it.
const mostTries = 3

// doubted returns how often bytes from the node's mirror were wrong, which several readers may notice at once, and
// how often reads have failed after a wait.
func (b *Blob) doubted() (doubts, expired int) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return b.doubts, b.expired
}

var errChunk = errors.New("a part of a file does not have its digest")

// readChunk reads a chunk of a file, and compares it with its digest if it may have come from the node's mirror.
// stargz-snapshotter verifies it as well, but its reads cannot be repeated.
func (b *Blob) readChunk(f metadata.File, p []byte, off int64) (n int, err error) {
	end := error(nil)
	err = b.retried(func() error {
		before, _ := b.doubted()
		var err error
		n, err = f.ReadAt(p, off)
		if end = nil; err == io.EOF {
			end, err = err, nil
		}
		doubts, _ := b.doubted()
		if err == nil && (b.borrowed() || doubts != before) && !right(f, p[:n], off) {
			err = errChunk
		}
		return err
	})
	if err == nil {
		err = end
	}
	return n, err
}

// right reports whether bytes of a file are the chunk at their offset. Bytes that are not a whole chunk are not
// compared.
func right(f metadata.File, p []byte, off int64) bool {
	at, size, text, ok := f.ChunkEntryForOffset(off)
	want, err := digest.Parse(text)
	if !ok || err != nil || at != off || size != int64(len(p)) {
		return true
	}
	return want.Algorithm().FromBytes(p) == want
}
