// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/node/freezer"
	"wangell.loutres.me/internal/wire"
)

// cgroups freezes processes. Paths are below the root of the hierarchies.
type cgroups interface {
	// Freeze stops all processes of a cgroup and returns once they have stopped. After an error they run.
	Freeze(ctx context.Context, cgroup string) error
	// Thaw lets the processes of a cgroup run.
	Thaw(cgroup string) error
	// Gone reports whether a cgroup does not exist.
	Gone(cgroup string) bool
	// Reclaim moves the memory of a frozen cgroup to swap, until ctx ends.
	Reclaim(ctx context.Context, cgroup string) error
	// WorkingSet returns the memory that a cgroup has used since Reclaim.
	WorkingSet(cgroup string) (*freezer.WorkingSet, error)
	// Memory measures a cgroup.
	Memory(cgroup string) (freezer.Memory, error)
	// CPU returns the CPU time that a cgroup has used.
	CPU(cgroup string) (time.Duration, error)
	// Weight returns the weight with which a cgroup competes for the processors.
	Weight(cgroup string) (uint64, error)
	// RestoreWeight gives a cgroup its former weight back, unless somebody has set another one since.
	RestoreWeight(cgroup string, former uint64) error
	// Inside returns the processes in a pod's cgroup.
	Inside(cgroup string) (freezer.Inside, error)
	// Holds reports whether a process is in a cgroup or below it.
	Holds(cgroup string, pid int) (bool, error)
}

// applyFreeze freezes the pods of a service that the controller names, and thaws all others. Slow work continues
// after it has returned; a FROZEN reports the outcome.
func (d *daemon) applyFreeze(m *wire.Freeze) {
	s := d.service(m.Service)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Seq < s.freezeSeq {
		return
	}
	s.freezeSeq = m.Seq
	wanted := map[uint64]bool{}
	for _, b := range m.Pods {
		p := s.pods[b.PodID]
		if p == nil {
			continue // it is gone, or unknown here: BACKENDS comes first
		}
		wanted[b.PodID] = true
		d.freeze(s, p, b, m)
	}
	for id, p := range s.pods {
		if q := d.freezing.find(id); q != nil && !wanted[id] {
			p.since = monotime.Now() // as if a client had come
			d.tasks.Go(func() { d.thaw(q, m.Seq, "") })
		}
	}
}

// freeze freezes a pod, or reports why not. s.mu is held.
func (d *daemon) freeze(s *service, p *pod, b wire.FrozenPod, m *wire.Freeze) {
	if !s.serves(p.id) || p.state == wire.PodDraining {
		d.reportFrozen(&wire.Frozen{Service: s.addr, PodID: p.id, Seq: m.Seq})
		return
	}
	if q := d.freezing.find(p.id); q != nil {
		d.tasks.Go(func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.seq = max(q.seq, m.Seq)
			switch {
			case d.freezing.find(p.id) != q: // thawed, which was reported for an earlier FREEZE
				d.reportFrozen(&wire.Frozen{Service: s.addr, PodID: p.id, Seq: m.Seq})
			case q.frozen && q.ctx.Err() == nil:
				d.reportFrozenPod(q, "")
			} // otherwise it is reported soon
		})
		return
	}
	c, err := d.counters(s, p)
	last := s.lastPacket(p.id, c)
	if err != nil || lifecycle.UsedSince(b.LastPacket, last, s.idleAfter()) {
		d.reportFrozen(&wire.Frozen{Service: s.addr, PodID: p.id, Seq: m.Seq})
		return
	}
	at := frozenPlace{cgroup: b.Cgroup}
	if b.Cgroup == "" {
		if reason := d.cannotFreeze(p); reason != "" {
			d.reportFrozen(&wire.Frozen{Service: s.addr, PodID: p.id, Seq: m.Seq, Reason: reason})
			return
		}
		at.netns = p.netns
	}
	q := d.freezing.add(d.ctx, p, s, at, m.Seq)
	if q == nil {
		return
	}
	if q.visits != nil {
		q.visits.last, q.visits.look = last, m.UnlessBusy
	}
	d.tasks.Go(func() { d.hold(q, last, m.Reclaim) })
}

// hold freezes a pod, unless its program was asked something after the last packet that the decision was based on.
func (d *daemon) hold(q *frozenPod, last monotime.Time, reclaim bool) {
	frozen, err := d.suspend(q, last)
	q.mu.Lock()
	q.settled = true
	q.mu.Unlock()
	if err != nil {
		level := slog.LevelWarn
		if _, ok := errors.AsType[keptError](err); ok {
			level = slog.LevelDebug
		}
		d.log.Log(d.ctx, level, "a pod is not frozen", "address", q.addr(), "pod", q.id, "error", err)
		d.thaw(q, 0, text.Shorten(err.Error(), wire.MaxReason))
		return
	}
	switch {
	case !frozen || q.ctx.Err() != nil: // it was asked something meanwhile
		d.thaw(q, 0, "")
	case reclaim:
		d.reclaim(q)
	}
}

// suspend informs the gate that a pod is about to be frozen, and freezes it unless it was used meanwhile.
func (d *daemon) suspend(q *frozenPod, last monotime.Time) (frozen bool, err error) {
	if q.visits != nil {
		stop, err := d.enclose(q)
		if err != nil {
			return false, err
		}
		defer func() {
			if frozen {
				d.tasks.Go(func() { d.guard(q, stop) })
			} else {
				stop()
			}
		}()
	}
	if err := d.freezing.records.write(q.id, q.place()); err != nil {
		return false, err
	}
	if err := d.setFrozen(q, true); err != nil {
		return false, err
	}
	if asked, err := d.lastAsked(q); err != nil || asked > last {
		return false, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ctx.Err() != nil {
		return false, nil
	}
	q.weight = d.weightOf(q)
	ctx, cancel := context.WithTimeout(q.ctx, freezeTimeout)
	defer cancel()
	if err := d.cgroups.Freeze(ctx, q.cgroup); err != nil {
		if q.ctx.Err() != nil {
			err = nil // the controller wants it to run again
		}
		return false, err
	}
	q.frozen, q.since = true, monotime.Now()
	if q.visits != nil {
		q.visits.since = q.since
	}
	d.reportFrozenPod(q, "")
	return true, nil
}

// reclaim moves the memory of a frozen pod to swap, and reports the outcome.
func (d *daemon) reclaim(q *frozenPod) {
	d.recordUse(q)
	q.mu.Lock()
	q.reclaimed = q.frozen
	q.mu.Unlock()
	err := d.cgroups.Reclaim(q.ctx, q.cgroup)
	if err == nil {
		q.memory.reclaimed.Store(true)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.ctx.Err() != nil || !q.frozen:
	case err != nil:
		d.reportFrozenPod(q, text.Shorten("its memory stays in RAM: "+err.Error(), wire.MaxReason))
	default:
		d.reportFrozenPod(q, "")
	}
}

// reportFrozenPod reports a frozen pod with its memory. q.mu is held.
func (d *daemon) reportFrozenPod(q *frozenPod, reason string) {
	m := &wire.Frozen{Service: q.addr(), PodID: q.id, Seq: q.seq, Frozen: true, At: q.since, Reason: reason}
	if use, err := d.cgroups.Memory(q.cgroup); err == nil {
		m.Resident, m.Swapped = use.Resident, use.Swapped
	}
	d.reportFrozen(m)
}

// adoptFrozen takes over the pods that an earlier daemon has frozen. It thaws those that the gate does not have.
func (d *daemon) adoptFrozen() {
	places, err := d.freezing.records.read()
	if err != nil {
		d.log.Error("pods that an earlier daemon has frozen are not known", "error", err)
	}
	for _, s := range d.services {
		for id, p := range s.pods {
			state, ok := d.gate.PodFreeze(s.addr, id)
			at, noted := places[id]
			delete(places, id)
			if ok && !noted && state != gate.PodRuns { // a Thawer has thawed it
				if err := d.gate.SetFrozen(s.addr, id, false); err != nil {
					d.log.Error("a pod that runs counts as frozen", "service", s.name, "pod", id, "error", err)
				}
			}
			if !ok || !noted {
				continue
			}
			q := d.freezing.add(d.ctx, p, s, at, 0)
			q.settled, q.frozen, q.since = true, true, monotime.Now()
			if state == gate.PodRuns { // the earlier daemon had not yet informed the gate, or had thawed the pod
				d.tasks.Go(func() { d.thaw(q, 0, "") })
			} else if q.visits != nil {
				d.tasks.Go(func() { d.adoptVisits(q) })
			}
		}
	}
	for id, at := range places {
		if err := d.cgroups.Thaw(at.cgroup); err != nil && !d.cgroups.Gone(at.cgroup) {
			d.log.Error("a pod that an earlier daemon has frozen cannot be thawed", "pod", id, "error", err)
			continue
		}
		if err := d.freezing.records.remove(id); err != nil {
			d.log.Warn("the record of a frozen pod stays", "pod", id, "error", err)
		}
	}
}

// introduce tells a controller that has just listed a pod whether the pod is frozen. s.mu is held.
func (d *daemon) introduce(s *service, p *pod) {
	q := d.freezing.find(p.id)
	if q == nil {
		if s.freezeAfter > 0 {
			d.reportFrozen(&wire.Frozen{Service: s.addr, PodID: p.id})
		}
		return
	}
	d.tasks.Go(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.seq = 0; q.frozen {
			d.reportFrozenPod(q, "")
		}
	})
}

// awaitThawed returns once a pod is not frozen, or ctx has ended.
func (d *daemon) awaitThawed(ctx context.Context, id uint64) {
	if q := d.freezing.find(id); q != nil {
		select {
		case <-q.gone:
		case <-ctx.Done():
		}
	}
}

// counters reads the counters of a pod. If its service is frozen while it is idle, only packets count that needed its
// program or came from it.
func (d *daemon) counters(s *service, p *pod) (gate.PodCounters, error) {
	c, err := d.podCounters(s, p.id)
	if s.freezeAfter > 0 {
		c.LastPacket = c.LastAsked
	}
	return c, err
}

// recordUse records which memory a frozen pod has used since its memory was last reclaimed. It runs before the next
// reclaim.
func (d *daemon) recordUse(q *frozenPod) {
	if !q.memory.reclaimed.Load() {
		return // everything it ever used would count
	}
	set, err := d.cgroups.WorkingSet(q.cgroup)
	if err != nil {
		d.log.Debug("cannot find out which memory a pod uses", "address", q.addr(), "pod", q.id, "error", err)
		return
	}
	if set.Bytes < smallUse {
		set = nil
	}
	q.memory.used.Store(set)
}

// smallUse is the size in bytes below which page faults are faster than fetching everything, which competes with the
// program for the CPU.
const smallUse = 16 << 20

// fetch reads the memory that a thawed pod used the last time back from swap, in the background, so that a large
// program does not wait for each page. It fetches for one pod at a time: when many are thawed at once, the programs
// come first.
func (d *daemon) fetch(q *frozenPod) {
	set := q.memory.used.Load()
	if set == nil {
		return
	}
	d.tasks.Go(func() {
		d.fetching.Lock()
		defer d.fetching.Unlock()
		if now := d.freezing.find(q.id); d.ctx.Err() != nil || now != nil && now != q {
			return // it is frozen again
		}
		if err := set.Fetch(); err != nil {
			d.log.Debug("cannot fetch the memory of a thawed pod: it comes page by page", "pod", q.id, "error", err)
		}
	})
}
