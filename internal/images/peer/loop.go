// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/wire"
)

const (
	// active is the number of blobs that are fetched concurrently: containerd asks for three at once.
	active = 4
	// tick is how often downloads are looked at when nothing happens.
	tick = 100 * time.Millisecond
	// hurry shortens the pause before an urgent report to 1/hurry.
	hurry = 4
	// noSource is how long a blob may lack a source before it is given up: containerd's own attempt would fail as
	// well. A blob whose registry has asked for a pause waits longer, because containerd would not wait.
	noSource       = 5 * time.Second
	noSourcePaused = maxPause + noSource
)

// loop begins requests and reports until ctx ends, and waits for requests.
func (m *Mirror) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.work:
		case <-timer.C:
		}
		now := time.Now()
		for _, b := range append(m.turn(ctx, now), m.lazyReports(now)...) {
			m.cfg.Send(b)
		}
		m.mu.Lock()
		idle := len(m.downloads) == 0 && !m.lazyActive(now)
		m.mu.Unlock()
		if !idle {
			timer.Reset(tick)
		}
	}
}

// turn begins the requests that can begin, and returns the reports to send.
func (m *Mirror) turn(ctx context.Context, now time.Time) []*wire.Blobs {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.downloads {
		if d.users == 0 && now.Sub(d.used) > keptFor {
			m.drop(d, context.Canceled)
		}
	}
	for _, d := range m.downloads {
		d.answered = excused(d.answered, m.turned, now)
	}
	m.turned = now
	blobs := slices.Clone(m.queue[:min(active, len(m.queue))])
	for _, d := range blobs {
		if m.canStream(d, now) {
			m.stream(d)
		}
	}
	state := swarm.State{Registry: m.registry, Peers: map[string]int{}}
	for id, p := range m.peers {
		state.Peers[id] = p.busy
	}
	for _, d := range blobs {
		state.Blobs = append(state.Blobs, m.state(d, now))
	}
	for _, r := range swarm.Next(state, m.cfg.Limits, now, rand.IntN) {
		d := blobs[r.Blob]
		d.busy.Add(r.Piece)
		if r.Peer == "" {
			if b := &state.Blobs[r.Blob]; !m.unheard && m.cfg.Limits.Silent(b.Answered, b.Pause, now) {
				m.unheard = true
				m.cfg.Log.Info("the controller does not answer: what no known peer has comes from the registry",
					"repository", d.key.Repository)
			}
			m.registry++
			m.group.Go(func() { m.fromRegistry(d, r.Piece) })
			continue
		}
		p, o := m.peers[r.Peer], d.offerOf(r.Peer)
		p.busy++
		m.group.Go(func() { m.fromPeer(d, r.Piece, p, o) })
	}
	for i, d := range blobs {
		m.starve(d, &state.Blobs[i], now)
	}
	return m.reports(blobs, now)
}

// excused returns since when a download has waited for the index, at a turn of the loop. If the turn is late, as on a
// busy machine, the mirror itself did not look: that time does not count. last is when the turn before it was.
func excused(answered, last, now time.Time) time.Time {
	if late := now.Sub(last) - tick; late > tick && !answered.After(last) {
		return answered.Add(late)
	}
	return answered
}

// state is a download as the plan needs it. m.mu is held.
func (m *Mirror) state(d *download, now time.Time) swarm.Blob {
	b := swarm.Blob{
		Pieces: d.pieces, Have: d.have, Busy: d.busy, Lease: m.leased(d, now), Barred: d.barred,
		Answered: d.answered, Pause: d.pause, NoRegistry: m.registries.down(d.key.Repository, now),
	}
	for _, o := range d.offers {
		p := m.peers[o.peer]
		b.Offers = append(b.Offers, swarm.Offer{Peer: o.peer, Have: o.have,
			Unusable: p == nil || now.Before(p.notBefore), Busy: p != nil && now.Before(p.free)})
	}
	return b
}

func (d *download) offerOf(peer string) offer {
	for _, o := range d.offers {
		if o.peer == peer {
			return o
		}
	}
	return offer{}
}

// starve gives up a download that has had no source for a while. One that waits for its turn at a peer has a source.
// m.mu is held.
func (m *Mirror) starve(d *download, b *swarm.Blob, now time.Time) {
	down, asked := m.registries.state(d.key.Repository, now)
	if d.busy.Len() > 0 || !down || b.Sourced() {
		return
	}
	if d.failing.IsZero() {
		d.failing = now
	}
	if since := now.Sub(d.failing); since > noSourcePaused || since > noSource && !asked {
		m.drop(d, errNoSource)
	}
}

// reports returns the reports for the index: changes, and downloads whose time has come. m.mu is held.
func (m *Mirror) reports(blobs []*download, now time.Time) []*wire.Blobs {
	byRepository := map[string][]wire.Blob{}
	for k, b := range m.changes {
		byRepository[k.Repository] = append(byRepository[k.Repository], b)
	}
	clear(m.changes)
	m.metrics.shared.Set(float64(len(m.stored)))
	for _, d := range blobs {
		pause := d.pause
		if pause == 0 {
			pause = firstPause
		}
		// There is nothing left to begin, and something to tell the index.
		if free := d.pieces - d.have.Len() - d.busy.Len(); d.dirty && (free > 0 && !d.canBegin() || free == 0) {
			pause /= hurry
		}
		if m.downloads[d.key] == d && now.Sub(d.reported) >= pause {
			d.reported, d.dirty = now, false
			byRepository[d.key.Repository] = append(byRepository[d.key.Repository], d.report())
		}
	}
	var out []*wire.Blobs
	for repository, list := range byRepository {
		for part := range slices.Chunk(list, wire.MaxBlobs) {
			out = append(out, &wire.Blobs{
				Repository: repository, Blobs: part,
				NoRegistry: m.registries.down(repository, now) && !m.caches.serves(repository, now),
			})
		}
	}
	return out
}

// canBegin reports whether there is a piece to fetch that is leased to this node or that a peer has.
func (d *download) canBegin() bool {
	for p := range d.pieces {
		if d.have.Has(p) || d.busy.Has(p) {
			continue
		}
		if d.lease.Has(p) || slices.ContainsFunc(d.offers, func(o offer) bool { return o.have.Has(p) }) {
			return true
		}
	}
	return false
}

func (d *download) report() wire.Blob {
	return wire.Blob{Digest: d.key.Digest, Size: d.size, State: wire.BlobPartial, Have: slices.Clone(d.have)}
}

// BeginSession reports everything that this node has to the controller of a new session, which may be a new one.
// certificate and address come first.
func (m *Mirror) BeginSession(send func(wire.Message)) {
	send(m.Identity())
	m.mu.Lock()
	clear(m.changes)
	for k, size := range m.stored {
		m.changes[k] = wire.Blob{Digest: k.Digest, Size: size, State: wire.BlobComplete}
	}
	for k, d := range m.downloads {
		if d.complete() {
			m.changes[k] = wire.Blob{Digest: k.Digest, Size: d.size, State: wire.BlobComplete}
		}
		d.reported = time.Time{}
	}
	m.silent, m.unheard = time.Time{}, false
	for _, b := range m.lazy {
		b.told, b.dirty = nil, true
	}
	reports := m.reports(m.queue[:min(active, len(m.queue))], time.Now())
	m.mu.Unlock()
	for _, r := range reports {
		send(r)
	}
}

// Receive takes an answer of the index.
func (m *Mirror) Receive(h *wire.Holders) {
	k := blobindex.Key{Repository: h.Repository, Digest: h.Digest}
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.notify()
	m.unheard = false
	offers := make([]offer, 0, len(h.Holders))
	for i := range h.Holders {
		o := &h.Holders[i]
		have := swarm.Set(o.Have)
		if o.Complete {
			have = swarm.FullSet(swarm.Pieces(h.Size))
		}
		offers = append(offers, offer{m.peer(o.Mirror), o.Grant, h.Expires, have})
	}
	if q := m.questions[k]; q != nil {
		q.size = h.Size
		delete(m.questions, k)
		close(q.answered)
	}
	m.answered(k, h, offers)
	if d := m.downloads[k]; d != nil && d.size == h.Size {
		d.lease, d.offers, d.answered = h.Lease, offers, time.Now()
		d.pause = time.Duration(h.PauseMillis) * time.Millisecond
	}
}
