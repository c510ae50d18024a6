// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/images/lazy/packed"
	"wangell.loutres.me/internal/wire"
)

const (
	// lazyFor is how long after its last request for a blob the snapshotter counts as active on it, and lazyEvery the
	// interval at which its progress is checked meanwhile.
	lazyFor   = 10 * time.Second
	lazyEvery = time.Second
	// silentFor is how long requests do not wait for an index that did not answer.
	silentFor = 5 * time.Second
	// maxLazyParts bounds the blobs whose parts are reported to the index. The index accepts twice as many of a node,
	// which leaves room for those fetched for containerd.
	maxLazyParts = 32
	// maxBorrow bounds a part that is borrowed from a peer, in bytes, because it is kept in memory.
	maxBorrow = 16 << 20
	// borrowTries is how many peers are asked for a part.
	borrowTries = 2
)

var errNoPeer = errors.New("no node is known to have that part")

// reads notes that the snapshotter reads a blob.
func (m *Mirror) reads(k blobindex.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.lazyOf(k)
	if b == nil {
		return
	}
	b.asked, b.dirty = time.Now(), true
	m.notify()
}

// lazyOf returns the entry of a blob, and makes it if necessary; nil if there are too many. m.mu is held.
func (m *Mirror) lazyOf(k blobindex.Key) *lazyBlob {
	b := m.lazy[k]
	if b == nil && len(m.lazy) < maxBlobs {
		b = &lazyBlob{first: make(chan struct{}), pause: firstPause}
		m.lazy[k] = b
	}
	return b
}

// forgetLazy forgets a blob. m.mu is held.
func (m *Mirror) forgetLazy(k blobindex.Key) {
	if b := m.lazy[k]; b.told != nil && !m.has(k) {
		m.changes[k] = wire.Blob{Digest: k.Digest, State: wire.BlobGone}
		m.notify()
	}
	delete(m.lazy, k)
}

// has reports whether containerd has a blob, or the mirror fetches it: then the index gets that report instead. m.mu
// is held.
func (m *Mirror) has(k blobindex.Key) bool {
	_, stored := m.stored[k]
	return stored || m.downloads[k] != nil
}

// answered handles the index's answer for a blob. m.mu is held.
func (m *Mirror) answered(k blobindex.Key, h *wire.Holders, offers []offer) {
	b := m.lazy[k]
	if b == nil || h.Size > 0 && h.Size != m.sizes[k] {
		return
	}
	b.offers, b.pause = offers, max(firstPause, time.Duration(h.PauseMillis)*time.Millisecond)
	if !b.answered {
		b.answered = true
		close(b.first)
	}
}

// borrow gets a part of a blob from a peer, and returns it with the size of the blob. It waits for the index only at
// the first request for a blob. The size must be known from a verified manifest.
func (m *Mirror) borrow(ctx context.Context, k blobindex.Key, offset, length uint64) (io.ReaderAt, uint64, error) {
	m.mu.Lock()
	b, size := m.lazy[k], m.sizes[k]
	wait := b != nil && !b.answered && time.Now().After(m.silent)
	m.mu.Unlock()
	if b == nil || length > maxBorrow || offset+length > size || offset+length < offset {
		return nil, 0, errNoPeer
	}
	if wait {
		m.awaitIndex(ctx, b)
	}
	err := errNoPeer
	for range borrowTries {
		p, o, ok := m.lender(b, size, offset, length)
		if !ok {
			break
		}
		var data []byte
		if data, err = m.askPart(ctx, k, p, o, offset, length); err == nil {
			return lentPart{data, int64(offset)}, size, nil
		}
	}
	return nil, 0, err
}

// awaitIndex returns at the index' first answer for a blob, or after a while.
func (m *Mirror) awaitIndex(ctx context.Context, b *lazyBlob) {
	timeout := time.NewTimer(m.cfg.askTimeout)
	defer timeout.Stop()
	select {
	case <-b.first:
	case <-ctx.Done():
	case <-timeout.C:
		m.mu.Lock()
		m.silent = time.Now().Add(silentFor)
		m.mu.Unlock()
	}
}

// lender returns the least busy peer that has a part, and counts a request to it.
func (m *Mirror) lender(b *lazyBlob, size, offset, length uint64) (best *peer, from offer, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, self := time.Now(), m.Identity().Fingerprint
	for _, o := range b.offers {
		p := m.peers[o.peer]
		if p == nil || p.at.Fingerprint == self || now.Before(p.notBefore) || now.Before(p.free) {
			continue
		}
		if !covers(o.have, size, offset, length) {
			continue
		}
		if best == nil || p.busy < best.busy {
			best, from = p, o
		}
	}
	if best != nil {
		best.busy++
	}
	return best, from, best != nil
}

// askPart gets a part of a blob from a peer.
func (m *Mirror) askPart(
	ctx context.Context, k blobindex.Key, p *peer, o offer, offset, length uint64,
) ([]byte, error) {
	data := new(bytes.Buffer)
	data.Grow(int(length))
	err := func() error {
		asking, stall := newStall(ctx)
		defer stall.end()
		body, err := p.opener(k, o)(asking, offset, length)
		if err != nil {
			return err
		}
		defer body.Close()
		_, err = m.copy(asking, stall, data, body, length, fromPeer)
		return err
	}()
	m.mu.Lock()
	defer m.mu.Unlock()
	p.busy--
	switch {
	case errors.Is(err, errBusy):
		p.free = time.Now().Add(swarm.BusyPause)
	case err != nil && ctx.Err() == nil:
		m.metrics.failed.WithLabelValues(fromPeer).Inc()
		p.notBefore = time.Now().Add(peerPause)
		m.cfg.Log.Info("a peer does not send a part of a layer", "peer", p.at.Addr, "repository", k.Repository,
			"error", err)
	}
	return data.Bytes(), err
}

// lentPart is a blob that is there in part.
type lentPart struct {
	data []byte
	at   int64
}

// ReadAt implements io.ReaderAt.
func (l lentPart) ReadAt(p []byte, off int64) (int, error) {
	if off < l.at || off >= l.at+int64(len(l.data)) {
		return 0, fmt.Errorf("byte %d is not there", off)
	}
	n := copy(p, l.data[off-l.at:])
	if n < len(p) {
		return n, io.ErrUnexpectedEOF
	}
	return n, nil
}

// lazyActive reports whether the snapshotter may be working on a blob that has to be reported. m.mu is held.
func (m *Mirror) lazyActive(now time.Time) bool {
	for _, b := range m.lazy {
		if b.dirty || !b.whole && now.Sub(b.asked) < lazyFor {
			return true
		}
	}
	return false
}

// lazyReports returns the reports and questions to the index about the blobs that the snapshotter reads. The node
// takes no lease for them: what no peer has, the snapshotter gets from the registry when it needs it.
func (m *Mirror) lazyReports(now time.Time) (out []*wire.Blobs) {
	m.mu.Lock()
	var due []blobindex.Key
	for k, b := range m.lazy {
		if b.dirty && now.Sub(b.reported) >= b.pause ||
			!b.whole && now.Sub(b.asked) < lazyFor && now.Sub(b.reported) >= lazyEvery {
			b.reported, b.dirty = now, false
			due = append(due, k)
		}
	}
	m.mu.Unlock()
	byRepository := map[string][]wire.Blob{}
	for _, k := range due {
		if r, ok := m.lazyReport(k, now); ok {
			byRepository[k.Repository] = append(byRepository[k.Repository], r)
		}
	}
	for repository, list := range byRepository {
		for part := range slices.Chunk(list, wire.MaxBlobs) {
			out = append(out, &wire.Blobs{Repository: repository, Blobs: part, NoRegistry: true})
		}
	}
	return out
}

// lazyReport returns a report about a blob, or a question which other nodes have it.
func (m *Mirror) lazyReport(k blobindex.Key, now time.Time) (wire.Blob, bool) {
	notes, _ := packed.Look(m.cfg.Layers, digestOf(k))
	have := piecesOf(notes)
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.lazy[k]
	asking := b != nil && now.Sub(b.asked) < lazyFor && !notes.Whole
	question := wire.Blob{Digest: k.Digest, State: wire.BlobPartial}
	switch {
	case b == nil:
		return question, false
	case m.has(k):
		return question, asking
	case have.Len() == 0 && b.told != nil:
		b.told, b.whole = nil, false
		return wire.Blob{Digest: k.Digest, State: wire.BlobGone}, true
	case have.Len() == 0, b.told == nil && !notes.Whole && m.lazyParts() >= maxLazyParts:
		return question, asking
	case !asking && b.whole == notes.Whole && bytes.Equal(b.told, have):
		return question, false
	}
	b.told, b.whole = have, notes.Whole
	r := wire.Blob{Digest: k.Digest, Size: uint64(notes.Size), State: wire.BlobPartial, Have: slices.Clone(have)}
	if notes.Whole {
		r.State, r.Have = wire.BlobComplete, nil
	}
	return r, true
}

// lazyParts returns the number of blobs with parts in the index. m.mu is held.
func (m *Mirror) lazyParts() (n int) {
	for _, b := range m.lazy {
		if b.told != nil && !b.whole {
			n++
		}
	}
	return n
}

// piecesOf returns the pieces of a blob that are present.
func piecesOf(n packed.Notes) swarm.Set {
	size := uint64(n.Size)
	if size == 0 {
		return nil
	}
	have := swarm.NewSet(swarm.Pieces(size))
	for p := range swarm.Pieces(size) {
		if offset, length := swarm.Bounds(size, p); n.Covers(int64(offset), int64(length)) {
			have.Add(p)
		}
	}
	return have
}

// lookLazy records that a layer of an image is not in containerd: the snapshotter may have it.
func (m *Mirror) lookLazy(k blobindex.Key) {
	if _, here := packed.Look(m.cfg.Layers, digestOf(k)); !here {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mayShare(k) {
		m.lazyOf(k)
	}
}

// scanLazy schedules a look at what the snapshotter has, and forgets the blobs that it does not have.
func (m *Mirror) scanLazy() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for k, b := range m.lazy {
		if _, here := packed.Look(m.cfg.Layers, digestOf(k)); !here && now.Sub(b.asked) > lazyFor {
			m.forgetLazy(k)
			continue
		}
		b.dirty = true
	}
	m.notify()
}
