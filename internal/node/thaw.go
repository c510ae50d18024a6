// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"
	"time"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/wire"
)

// thawEvent thaws a pod whose program a packet needs. It must not block.
func (d *daemon) thawEvent(e gate.Event) {
	q := d.freezing.find(e.Pod)
	switch {
	case q == nil: // it runs already, or an earlier daemon was killed before it could record the pod
		if err := d.gate.SetFrozen(e.Service, e.Pod, false); err != nil {
			d.log.Debug("a thawed pod is gone", "address", e.Service, "pod", e.Pod, "error", err)
		}
	case e.Cause == gate.ThawDirect && q.visits != nil:
		notify(q.visits.begin)
	case d.resume(q):
		d.tellLater(q)
	default:
		d.tasks.Go(func() { d.thaw(q, 0, "") })
	}
}

// resume lets a frozen pod run again, and does nothing else: a client waits for the answer, and anything more would
// take processor time from the pod. The record of the pod stays until thaw does the rest. It reports whether the pod
// runs; false if it would have to wait for that.
func (d *daemon) resume(q *still) bool {
	if !q.mu.TryLock() {
		return false
	}
	defer q.mu.Unlock()
	if !q.frozen || d.cgroups.Thaw(q.cgroup) != nil {
		return false
	}
	d.runs(q)
	return true
}

// runs records that the processes of a pod run. q.mu is held.
func (d *daemon) runs(q *still) {
	q.end()
	q.frozen, q.running, q.since = false, true, monotime.Now()
	d.restoreWeight(q)
	if q.reclaimed {
		d.fetch(q)
	}
}

// weightOf returns the weight of a pod's CPU if it may be lowered while the pod is frozen: on a cluster, where the pod
// gives its requests back.
func (d *daemon) weightOf(q *still) uint64 {
	if q.visits == nil {
		return 0
	}
	weight, err := d.cgroups.Weight(q.cgroup)
	if err != nil {
		d.log.Debug("the weight of a pod's CPU is not known", "address", q.addr(), "pod", q.id, "error", err)
	}
	return weight
}

// restoreWeight gives a thawed pod the weight that it had. Kubelet does that as well, once the controller has changed
// the requests and the API server has told it, while a client waits for the answer. q.mu is held.
func (d *daemon) restoreWeight(q *still) {
	if q.weight == 0 {
		return
	}
	if err := d.cgroups.RestoreWeight(q.cgroup, q.weight); err != nil {
		d.log.Debug("a thawed pod has less CPU until kubelet knows", "address", q.addr(), "pod", q.id, "error", err)
	}
}

// tellLater arranges the report of a pod's thaw.
func (d *daemon) tellLater(q *still) {
	now, u := time.Now(), &d.untold
	u.mu.Lock()
	defer u.mu.Unlock()
	u.add(q, now)
	if pause := u.due.Sub(now); u.timer == nil {
		u.timer = time.AfterFunc(pause, d.tell)
	} else {
		u.timer.Reset(pause)
	}
}

// tell reports the thaws if that is due, one after the other.
func (d *daemon) tell() {
	for _, q := range d.untold.take(time.Now()) {
		d.thaw(q, 0, "")
	}
}

// thaw lets a pod run again, unless it runs already, and reports that. seq is the decision that caused it; 0 if
// there was none.
func (d *daemon) thaw(q *still, seq uint64, reason string) {
	q.end()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seq = max(q.seq, seq)
	if !q.settled {
		return // hold will thaw it
	}
	if !q.running {
		d.thawCgroup(q)
		d.runs(q)
	}
	if !d.freezing.remove(q) { // another call was first, and did not know of this decision
		if seq > 0 {
			d.reportFrozen(&wire.Frozen{Service: q.addr(), PodID: q.id, Seq: q.seq, At: q.since})
		}
		return
	}
	notify(d.maintenance) // which rests while all pods are frozen
	if err := d.gate.SetFrozen(q.addr(), q.id, false); err != nil {
		d.log.Debug("a thawed pod is gone", "address", q.addr(), "pod", q.id, "error", err)
	}
	if err := d.freezing.records.remove(q.id); err != nil {
		d.log.Warn("the record of a frozen pod stays", "pod", q.id, "error", err)
	}
	d.reportFrozen(&wire.Frozen{
		Service: q.addr(), PodID: q.id, Seq: q.seq, At: q.since, Reason: reason,
	})
}

// thawCgroup lets the processes of a pod run, or returns once there are none. q.mu is held.
func (d *daemon) thawCgroup(q *still) {
	err := d.cgroups.Thaw(q.cgroup)
	for pause := time.Duration(0); err != nil && !d.cgroups.Gone(q.cgroup); {
		pause = backoff.Next(pause, thawAgain, longestThawPause)
		d.log.Error("a pod cannot be thawed; tried again", "address", q.addr(), "pod", q.id, "error", err, "in", pause)
		time.Sleep(pause)
		err = d.cgroups.Thaw(q.cgroup)
	}
}

// Pauses before a pod that cannot be thawed is tried again.
const (
	thawAgain        = 10 * time.Millisecond
	longestThawPause = time.Second
)

// thawAll lets all pods run again.
func (d *daemon) thawAll() {
	var group sync.WaitGroup
	for _, q := range d.freezing.all() {
		group.Go(func() { d.thaw(q, 0, "") })
	}
	group.Wait()
}

// reportFrozen reports whether a pod is frozen.
func (d *daemon) reportFrozen(m *wire.Frozen) {
	if m.At == 0 {
		m.At = monotime.Now()
	}
	d.send(m)
}

// Pauses between thaws by packets and the reports of them, in which the pods have the processors for themselves.
const (
	tellAfter = 50 * time.Millisecond // for one pod
	tellEach  = 2 * time.Millisecond  // more for each other one: reclaimed ones need one of two processors for as long
	tellMost  = 500 * time.Millisecond
)

// tellAt returns when the thaws of a number of pods are to be reported, of which the first and the last one are given.
func tellAt(first, last time.Time, pods int) time.Time {
	at, most := last.Add(tellAfter+time.Duration(pods-1)*tellEach), first.Add(tellMost)
	if at.After(most) {
		return most
	}
	return at
}

// untold are pods that packets have thawed and that have not been reported.
type untold struct {
	mu    sync.Mutex
	pods  []*still // in the order of their thaw
	first time.Time
	due   time.Time
	timer *time.Timer // nil before the first pod
}

// add adds a pod that was thawed now. u.mu is held.
func (u *untold) add(q *still, now time.Time) {
	if len(u.pods) == 0 {
		u.first = now
	}
	u.pods = append(u.pods, q)
	u.due = tellAt(u.first, now, len(u.pods))
}

// take removes and returns the pods if they are to be reported by now. If not, another one was thawed when the timer
// had just expired, and has set it again.
func (u *untold) take(now time.Time) (pods []*still) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Before(u.due) {
		return nil
	}
	pods, u.pods = u.pods, nil
	return pods
}

// end has the timer call nothing any more.
func (u *untold) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timer != nil {
		u.timer.Stop()
	}
}
