// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"io"
	"time"

	"wangell.loutres.me/internal/decide/swarm"
)

// leased returns the pieces of this node's lease to fetch from the registry next: if there is a cache, only
// after no piece has come for a while. m.mu is held.
func (m *Mirror) leased(d *download, now time.Time) swarm.Set {
	if m.caches.serves(d.key.Repository, now) && (d.streaming || !d.streamed && now.Sub(d.moved) < cachePatience) {
		return nil
	}
	return d.lease
}

// canStream reports whether this node may read a blob from the cache: it has the lease of the first piece, or the
// index does not answer. m.mu is held.
func (m *Mirror) canStream(d *download, now time.Time) bool {
	silent := m.cfg.Limits.Silent(d.answered, d.pause, now)
	return !d.streamed && (d.lease.Has(0) || silent) && m.registry < m.cfg.Limits.Registry &&
		m.caches.serves(d.key.Repository, now)
}

// stream begins to read a blob from the cache. m.mu is held.
func (m *Mirror) stream(d *download) {
	claimed := swarm.NewSet(d.pieces)
	for p := range d.pieces {
		if !d.have.Has(p) && !d.busy.Has(p) {
			claimed.Add(p)
			d.busy.Add(p)
		}
	}
	d.streamed, d.streaming = true, true
	m.registry++
	m.group.Go(func() { m.fromCache(d, claimed) })
}

// fromCache reads a blob from the cache, and keeps the pieces that were claimed.
func (m *Mirror) fromCache(d *download, claimed swarm.Set) {
	err := m.readCache(d, claimed)
	if failed(d, err) {
		m.metrics.failed.WithLabelValues(fromCache).Inc()
		m.caches.failed(d.key.Repository, time.Now())
		m.cfg.Log.Info("the cache does not send a blob", "repository", d.key.Repository, "digest", digestOf(d.key),
			"error", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registry--
	d.streaming = false
	for p := range d.pieces {
		if claimed.Has(p) {
			d.busy.Remove(p)
		}
	}
	m.close(d)
	m.notify()
}

// readCache reads a blob from the cache, and moves pieces from claimed to the download as they arrive.
func (m *Mirror) readCache(d *download, claimed swarm.Set) error {
	ctx, stall := newStall(d.ctx)
	defer stall.end()
	body, err := m.caches.open(ctx, d.key, d.manifest)
	if err != nil {
		return err
	}
	defer body.Close()
	for p := range d.pieces {
		offset, length := swarm.Bounds(d.size, p)
		to := io.Discard
		if claimed.Has(p) {
			to = fileWriter{io.NewOffsetWriter(d.file, int64(offset))}
		}
		if _, err := m.copy(ctx, stall, to, body, length, fromCache); err != nil {
			return err
		}
		if claimed.Has(p) {
			claimed.Remove(p)
			m.settle(d, p, cacheSource, nil)
		}
	}
	return nil
}
