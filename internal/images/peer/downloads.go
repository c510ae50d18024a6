// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/wire"
)

// begin returns the download of a blob, a new one if necessary. The user must call leave. m.mu is held.
func (m *Mirror) begin(ctx context.Context, k blobindex.Key, size uint64, manifest bool) (*download, error) {
	if d := m.downloads[k]; d != nil {
		d.users++
		return d, nil
	}
	f, err := os.Create(filepath.Join(m.cfg.Dir, fmt.Sprintf("%x-%d", k.Digest, time.Now().UnixNano())))
	if err != nil {
		return nil, fmt.Errorf("make a file for a blob: %w", err)
	}
	n, now := swarm.Pieces(size), time.Now()
	d := &download{
		key: k, manifest: manifest, size: size, pieces: n, file: f, ended: make(chan struct{}),
		have: swarm.NewSet(n), busy: swarm.NewSet(n),
		from: make([]string, n), suspects: map[int][]suspect{}, answered: now, moved: now, users: 1, hash: sha256.New(),
	}
	if m.unheard {
		d.answered = time.Time{} // it need not wait as long as the download before it
	}
	d.ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	m.downloads[k] = d
	m.queue = append(m.queue, d)
	m.notify()
	return d, nil
}

// leave ends a use of a download.
func (m *Mirror) leave(d *download) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d.users--
	d.used = time.Now()
	m.close(d)
}

// drop ends a download and removes its file, once nobody reads it. m.mu is held.
func (m *Mirror) drop(d *download, why error) {
	if m.downloads[d.key] != d {
		return
	}
	delete(m.downloads, d.key)
	m.end(d, why)
	if _, stored := m.stored[d.key]; !stored {
		m.changes[d.key] = wire.Blob{Digest: d.key.Digest, State: wire.BlobGone}
	}
	m.close(d)
	m.notify()
}

// end records that a download is complete, or has failed. m.mu is held.
func (m *Mirror) end(d *download, err error) {
	for i, o := range m.queue {
		if o == d {
			m.queue = append(m.queue[:i:i], m.queue[i+1:]...)
			d.err = err
			close(d.ended)
			break
		}
	}
	d.cancel()
}

// close closes and removes the file of a download that was dropped and is not used. m.mu is held.
func (m *Mirror) close(d *download) {
	if m.downloads[d.key] == d || d.users > 0 || d.file == nil || d.busy.Len() > 0 {
		return
	}
	d.file.Close()
	if err := os.Remove(d.file.Name()); err != nil {
		m.cfg.Log.Warn("the mirror's file of a blob stays", "error", err)
	}
	d.file = nil
}

// settle records the end of the request for a piece, which is in the file unless there is an error. from is the peer
// or cacheSource; empty for the registry.
func (m *Mirror) settle(d *download, piece int, from string, err error) {
	m.mu.Lock()
	d.busy.Remove(piece)
	var full *fileError
	if errors.As(err, &full) {
		m.drop(d, err)
	}
	if err == nil && m.downloads[d.key] == d {
		d.have.Add(piece)
		d.from[piece] = from
		d.dirty, d.failing, d.moved = true, time.Time{}, time.Now()
		d.users++
		defer m.leave(d)
		defer m.check(d)
	} else {
		m.close(d)
	}
	m.mu.Unlock()
	m.notify()
}

// check hashes the pieces that follow each other without a gap, and compares the digest after the last one.
func (m *Mirror) check(d *download) {
	d.hashing.Lock()
	defer d.hashing.Unlock()
	if d.hashed == d.pieces {
		return // an earlier caller saw the last piece as well
	}
	for d.hashed < d.pieces {
		m.mu.Lock()
		has, gone := d.have.Has(d.hashed), m.downloads[d.key] != d
		m.mu.Unlock()
		if !has || gone {
			return
		}
		if err := d.read(d.hashed, d.hash); err != nil {
			m.mu.Lock()
			m.drop(d, fmt.Errorf("read the file of a blob: %w", err))
			m.mu.Unlock()
			return
		}
		d.hashed++
	}
	if [sha256.Size]byte(d.hash.Sum(nil)) == d.key.Digest {
		m.verified(d)
		return
	}
	m.mismatch(d)
}

// verified records that a blob is complete, and bans the peers that had sent wrong pieces. d.hashing is held.
func (m *Mirror) verified(d *download) {
	for piece, list := range d.suspects {
		right, err := d.sum(piece)
		for _, s := range list {
			switch {
			case err != nil || s.sum == right:
			case s.peer == cacheSource:
				m.caches.failed(d.key.Repository, time.Now())
			default:
				m.ban(s.peer, d, piece)
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.downloads[d.key] != d {
		return
	}
	m.end(d, nil)
	m.changes[d.key] = wire.Blob{Digest: d.key.Digest, Size: d.size, State: wire.BlobComplete}
	m.notify()
}

// mismatch discards pieces that came from peers or the cache: they are fetched again from others, and in the last
// attempt from the registry only. d.hashing is held.
func (m *Mirror) mismatch(d *download) {
	d.tries++
	again := 0
	for piece, peer := range d.from {
		if peer == "" {
			continue
		}
		sum, err := d.sum(piece)
		if err != nil {
			break // and fail
		}
		again++
		m.mu.Lock()
		d.suspects[piece] = append(d.suspects[piece], suspect{peer, sum})
		d.have.Remove(piece)
		m.mu.Unlock()
	}
	d.hash, d.hashed = sha256.New(), 0
	m.metrics.mismatches.Inc()
	m.cfg.Log.Warn("a blob does not have its digest: what came from other nodes is fetched again", "repository",
		d.key.Repository, "digest", digestOf(d.key), "pieces", again, "try", d.tries)
	m.mu.Lock()
	defer m.mu.Unlock()
	d.dirty = true
	if again == 0 || d.tries == maxTries {
		m.drop(d, errDigest)
	}
	m.notify()
}

// ban excludes a peer that has sent a wrong piece for a while.
func (m *Mirror) ban(id string, d *download, piece int) {
	m.metrics.banned.Inc()
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.peers[id]; p != nil {
		p.notBefore = time.Now().Add(banFor)
		m.cfg.Log.Warn("a peer has sent wrong bytes of a blob, and is not asked for a while", "peer", p.at.Addr,
			"repository", d.key.Repository, "digest", digestOf(d.key), "piece", piece)
	}
}
