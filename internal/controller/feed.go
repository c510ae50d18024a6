// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/internal/wire"
)

const (
	// feedBatch is the number of messages that are sent to a daemon at once.
	feedBatch = 128
	// feedWindow is the most messages in flight to a daemon. Beyond it, further changes of a service replace earlier
	// ones.
	feedWindow = 512
	// feedShare is the pause after a round of all daemons, as a multiple of the round's duration. Changes in the
	// pause share datagrams.
	feedShare = 2
)

// feed brings the newest publication of every service to every daemon. Daemons that a change concerns get it at once,
// all others in rounds. A daemon that is slow, or has just joined, skips publications that have been superseded, so
// at most one message for each service waits for it. It belongs to the loop.
type feed struct {
	loop    *loop
	table   *table
	daemons *daemons

	log       []*publication // in the order of seq; superseded ones are removed now and then
	last      uint64         // seq of the newest publication
	compactAt int            // length of log at which superseded publications are removed
	readers   map[uint64]*reader
	byNode    map[string]*reader
	drains    drains
	armed     bool      // a round of all daemons will run
	next      time.Time // not before
}

// reader is a daemon's place in the log.
type reader struct {
	peer     wire.Peer
	joined   uint64 // seq of the newest publication when it joined
	next     uint64 // seq of the next publication to look at
	handled  uint64 // it has handled all publications up to this seq
	inFlight int    // messages sent and not handled
	held     bool   // the window is full: more is sent once it has handled some
	gone     bool   // its session has ended, or is about to
}

func newFeed(l *loop, t *table, d *daemons) *feed {
	return &feed{
		loop: l, table: t, daemons: d, compactAt: 256, readers: map[uint64]*reader{}, byNode: map[string]*reader{},
	}
}

// add appends a publication. The caller calls spread after it.
func (f *feed) add(s *service, m *wire.Backends) *publication {
	f.last++
	p := &publication{seq: f.last, service: s, message: m, homes: make(map[string]bool, len(m.Pods))}
	for i := range m.Pods {
		p.homes[m.Pods[i].Node] = true
	}
	s.publication = p
	if len(f.log) >= f.compactAt {
		f.compact()
	}
	f.log = append(f.log, p)
	return p
}

// compact removes publications that no daemon will need.
func (f *feed) compact() {
	seen := f.last // all readers have looked at those below
	for _, r := range f.readers {
		seen = min(seen, r.next)
	}
	f.log = slices.DeleteFunc(f.log, func(p *publication) bool {
		return !f.current(p) || p.seq < seen && p.empty()
	})
	f.compactAt = 2*len(f.log) + 256
}

// current reports whether a publication is the newest of a service that daemons know.
func (f *feed) current(p *publication) bool {
	s := p.service
	return s.publication == p && !s.homeless && f.table.services[s.key] == s
}

// spread sends a publication at once to the daemons it concerns: the homes of its pods, and those that asked for a
// wake. All others get it in the next round, which begins now unless one has just ended.
func (f *feed) spread(p *publication) {
	now := time.Now()
	if !f.armed && !now.Before(f.next) {
		f.round()
		return
	}
	for node := range p.homes {
		f.send(f.byNode[node])
	}
	for id := range p.service.askers {
		f.send(f.readers[id])
	}
	if !f.armed {
		f.armed = true
		f.loop.after(f.next.Sub(now), f.round)
	}
}

// round sends all daemons what they lack.
func (f *feed) round() {
	begin := time.Now()
	for _, r := range f.readers {
		f.send(r)
	}
	now := time.Now()
	f.armed, f.next = false, now.Add(feedShare*now.Sub(begin))
}

// send sends a daemon the publications that it lacks, within feedWindow. r may be nil.
func (f *feed) send(r *reader) {
	for r != nil && !r.gone && r.next <= f.last {
		if r.held = r.inFlight+feedBatch > feedWindow; r.held {
			return
		}
		batch := f.take(r)
		if len(batch) == 0 {
			if r.inFlight == 0 {
				f.loop.post(func() { f.handled(r, 0, r.next-1) })
			}
			return
		}
		upTo, n := r.next-1, len(batch)
		err := f.daemons.server.SendBatch(r.peer.ID, batch, func(err error) {
			f.loop.post(func() {
				if err != nil {
					f.drop(r)
					return
				}
				f.handled(r, n, upTo)
			})
		})
		switch {
		case err == nil:
			r.inFlight += n
		case errors.Is(err, wire.ErrPeerGone):
			f.loop.after(0, func() { f.drop(r) }) // not from within a step
			return
		default:
			f.daemons.disconnect(r.peer, err)
			f.loop.after(0, func() { f.drop(r) })
			return
		}
	}
}

// take returns the next messages for a daemon, and moves its position behind them.
func (f *feed) take(r *reader) (batch []wire.Encoded) {
	i := sort.Search(len(f.log), func(i int) bool { return f.log[i].seq >= r.next })
	for ; i < len(f.log) && len(batch) < feedBatch; i++ {
		p := f.log[i]
		r.next = p.seq + 1
		if !f.current(p) || p.seq <= r.joined && p.empty() {
			continue
		}
		if e, ok := f.encode(p, r.peer.Node); ok {
			batch = append(batch, e)
		}
	}
	if i == len(f.log) {
		r.next = f.last + 1
	}
	return batch
}

// encode returns a publication for a node. ok is false if it cannot be encoded, which is reported.
func (f *feed) encode(p *publication, node string) (e wire.Encoded, ok bool) {
	if !p.homes[node] && p.plain != nil {
		return *p.plain, p.plain.Size() > 0
	}
	e, err := wire.Encode(forNode(p.message, node))
	if err != nil {
		text := fmt.Sprintf("its pods cannot be published: %v", err)
		f.daemons.events.report(p.service.key, v1alpha1.EventProblem, status.SeverityError, text)
		e = wire.Encoded{}
	}
	if !p.homes[node] {
		p.plain = &e
	}
	return e, err == nil
}

// forNode returns the message for a node: only a pod's home node needs its network namespace and its probe.
func forNode(m *wire.Backends, node string) *wire.Backends {
	out := m
	for i := range m.Pods {
		if m.Pods[i].Node == node || m.Pods[i].Netns == "" && m.Pods[i].Probe == "" {
			continue
		}
		if out == m {
			other := *m
			out, other.Pods = &other, slices.Clone(m.Pods)
		}
		out.Pods[i].Netns, out.Pods[i].Probe, out.Pods[i].Runtime = "", "", ""
	}
	return out
}

// join gives a new daemon all services that have pods.
func (f *feed) join(p wire.Peer) {
	r := &reader{peer: p, joined: f.last, next: 1}
	f.readers[p.ID], f.byNode[p.Node] = r, r
	f.send(r)
}

// leave forgets a daemon.
func (f *feed) leave(p wire.Peer) {
	r := f.readers[p.ID]
	if r == nil {
		return
	}
	delete(f.readers, p.ID)
	if f.byNode[p.Node] == r {
		delete(f.byNode, p.Node)
	}
	f.drop(r)
}

// beginDrain begins a drain with the newest publication of a service. It returns nil if no daemon has to be waited for.
func (f *feed) beginDrain(s *service) *drainRound {
	awaited := 0
	for _, r := range f.readers {
		if !r.gone {
			awaited++
		}
	}
	if awaited == 0 {
		return nil
	}
	return f.drains.begin(s, awaited)
}

// settle records that a daemon has the publications up to a seq, or does not need them. Drains that began before it
// joined do not wait for it.
func (f *feed) settle(r *reader, from, upTo uint64) {
	f.drains.settle(max(from, r.joined), upTo)
}

// stopping returns the services that are being drained and that daemons know.
func (f *feed) stopping() (out []*service) {
	for _, p := range f.log {
		if s := p.service; f.current(p) && s.machine.State() == lifecycle.Stopping && len(s.pods) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// handled records that a daemon has handled n messages, and so all publications up to a seq. Publications newer than
// the last round wait for the next one: sending them with other changes is cheaper than sending after each answer.
func (f *feed) handled(r *reader, n int, upTo uint64) {
	if r.inFlight -= n; r.inFlight == 0 {
		upTo = r.next - 1 // what follows is of no use to it
	}
	if r.gone || upTo <= r.handled {
		return
	}
	from := r.handled
	r.handled = upTo
	f.settle(r, from, upTo)
	if r.held {
		f.send(r)
	}
}

// drop no longer waits for a daemon that is gone.
func (f *feed) drop(r *reader) {
	if !r.gone {
		r.gone = true
		f.settle(r, r.handled, f.last)
	}
}
