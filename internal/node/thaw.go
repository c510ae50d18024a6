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
		d.reportThawLater(q)
	default:
		d.tasks.Go(func() { d.thaw(q, 0, "") })
	}
}

// resume lets a frozen pod run again, and does nothing else: a client waits for the answer, and anything more would
// take processor time from the pod. The pod's record stays until thaw does the rest. It reports whether the pod runs;
// it does not wait, and returns false if it would have to.
func (d *daemon) resume(q *frozenPod) bool {
	if !q.mu.TryLock() {
		return false
	}
	defer q.mu.Unlock()
	if !q.frozen || d.cgroups.Thaw(q.cgroup) != nil {
		return false
	}
	d.markRunning(q)
	return true
}

// markRunning records that the processes of a pod run. q.mu is held.
func (d *daemon) markRunning(q *frozenPod) {
	q.end()
	q.frozen, q.running, q.since = false, true, monotime.Now()
	d.restoreWeight(q)
	if q.reclaimed {
		d.fetch(q)
	}
}

// weightOf returns a pod's CPU weight if it may be lowered while the pod is frozen, which happens in a cluster, where a
// frozen pod gives back its requests; otherwise 0.
func (d *daemon) weightOf(q *frozenPod) uint64 {
	if q.visits == nil {
		return 0
	}
	weight, err := d.cgroups.Weight(q.cgroup)
	if err != nil {
		d.log.Debug("the weight of a pod's CPU is not known", "address", q.addr(), "pod", q.id, "error", err)
	}
	return weight
}

// restoreWeight gives a thawed pod its former CPU weight back. Kubelet would do so too, but only after the controller
// has changed the requests and the API server has told kubelet; a client waits meanwhile. q.mu is held.
func (d *daemon) restoreWeight(q *frozenPod) {
	if q.weight == 0 {
		return
	}
	if err := d.cgroups.RestoreWeight(q.cgroup, q.weight); err != nil {
		d.log.Debug("a thawed pod has less CPU until kubelet knows", "address", q.addr(), "pod", q.id, "error", err)
	}
}

// reportThawLater schedules the report of a pod's thaw.
func (d *daemon) reportThawLater(q *frozenPod) {
	now, u := time.Now(), &d.thawReports
	u.mu.Lock()
	defer u.mu.Unlock()
	u.add(q, now)
	if pause := u.due.Sub(now); u.timer == nil {
		u.timer = time.AfterFunc(pause, d.reportThaws)
	} else {
		u.timer.Reset(pause)
	}
}

// reportThaws reports the thaws that are due, one after the other.
func (d *daemon) reportThaws() {
	for _, q := range d.thawReports.take(time.Now()) {
		d.thaw(q, 0, "")
	}
}

// thaw lets a pod run again, unless it runs already, and reports it. seq is the controller's decision that caused it; 0
// if there was none.
func (d *daemon) thaw(q *frozenPod, seq uint64, reason string) {
	q.end()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seq = max(q.seq, seq)
	if !q.settled {
		return // hold will thaw it
	}
	if !q.running {
		d.thawCgroup(q)
		d.markRunning(q)
	}
	if !d.freezing.remove(q) { // another call came first, and did not know of this decision
		if seq > 0 {
			d.reportFrozen(&wire.Frozen{Service: q.addr(), PodID: q.id, Seq: q.seq, At: q.since})
		}
		return
	}
	notify(d.maintenance) // which rests while all pods are frozen
	if err := d.setFrozen(q, false); err != nil {
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
func (d *daemon) thawCgroup(q *frozenPod) {
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

// reportFrozen tells the controller whether a pod is frozen.
func (d *daemon) reportFrozen(m *wire.Frozen) {
	if m.At == 0 {
		m.At = monotime.Now()
	}
	d.send(m)
}

// Pauses between thaws caused by packets and their reports. They leave the processors to the pods: a pod whose memory
// was reclaimed keeps one of two processors busy for about thawReportEach.
const (
	thawReportAfter = 50 * time.Millisecond // for one pod
	thawReportEach  = 2 * time.Millisecond  // more for each further pod
	thawReportMost  = 500 * time.Millisecond
)

// thawReportDue returns when to report the thaws of a number of pods, given the times of the first and the last one.
func thawReportDue(first, last time.Time, pods int) time.Time {
	at, most := last.Add(thawReportAfter+time.Duration(pods-1)*thawReportEach), first.Add(thawReportMost)
	if at.After(most) {
		return most
	}
	return at
}

// thawReports holds the pods thawed by packets whose thaw has not been reported yet.
type thawReports struct {
	mu    sync.Mutex
	pods  []*frozenPod // in the order of their thaw
	first time.Time
	due   time.Time
	timer *time.Timer // nil before the first pod
}

// add adds a pod that was just thawed. u.mu is held.
func (u *thawReports) add(q *frozenPod, now time.Time) {
	if len(u.pods) == 0 {
		u.first = now
	}
	u.pods = append(u.pods, q)
	u.due = thawReportDue(u.first, now, len(u.pods))
}

// take removes and returns the pods if their report is due. It is not if another pod was thawed just as the timer
// expired, and has set the timer again.
func (u *thawReports) take(now time.Time) (pods []*frozenPod) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Before(u.due) {
		return nil
	}
	pods, u.pods = u.pods, nil
	return pods
}

// end stops the timer for good.
func (u *thawReports) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.timer != nil {
		u.timer.Stop()
	}
}
