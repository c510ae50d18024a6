// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/node/freezer"
)

const (
	// A visit ends once the pod had nothing to do at two checks in a row. The pauses between checks grow.
	firstVisitPause   = 10 * time.Millisecond
	longestVisitPause = 200 * time.Millisecond
	// visitMost is the longest visit. A pod that is needed for longer counts as running.
	visitMost = 10 * time.Second
	// unreadMost is the greatest age, at the freeze, of data that a program is still expected to read.
	unreadMost = time.Second
	// lookEvery is the pause between two checks for what causes no event: signals that wait for a frozen pod, such as
	// from kubelet when it evicts the pod. The first check after each freeze also finds segments that were on their way
	// to a socket meanwhile.
	lookEvery = 5 * time.Second
	// lookSpan is how long a pod's CPU usage is measured before it is frozen.
	lookSpan = time.Second
)

// keptError says why a healthy pod that could be frozen runs on.
type keptError string

func (e keptError) Error() string { return string(e) }

// cannotFreeze says why a pod whose cgroup the controller does not know cannot be frozen; empty if it can. Its
// service's mu is held.
func (d *daemon) cannotFreeze(p *pod) string {
	switch {
	case d.cfg.CgroupRoot == "":
		return "daemons may not freeze pods: install the chart with daemon.freezing.enabled=true"
	case d.cri == nil || p.netns == "":
		return "its cgroup is not known"
	}
	return ""
}

// enclose finds the cgroup of a pod of a cluster, checks that the pod can be frozen now, and begins to watch for
// processes that enter it. stop ends the watch.
func (d *daemon) enclose(q *frozenPod) (stop func(), err error) {
	if q.cgroup == "" {
		c, err := d.cri.Cgroup(q.ctx, q.visits.netns)
		if err != nil {
			return nil, err
		}
		held, err := d.cgroups.Holds(c.Path, c.PID)
		if err != nil {
			return nil, err
		}
		if !held {
			return nil, fmt.Errorf("process %d of its pause container is not in the cgroup %s", c.PID, c.Path)
		}
		q.cgroup = c.Path
	}
	if err := d.lookAt(q); err != nil {
		return nil, err
	}
	return d.watch(q)
}

// watch begins to watch for visitors that the gate does not see. stop ends the watch.
func (d *daemon) watch(q *frozenPod) (stop func(), err error) {
	closeDoors, err := d.watchDoors(q)
	if err != nil {
		return nil, err
	}
	if q.visits.local, err = watchLoopback(q.visits.netns, func() { notify(q.visits.begin) }); err != nil {
		closeDoors()
		return nil, err
	}
	return func() { closeDoors(); q.visits.local.close() }, nil
}

// lookAt returns a keptError if a pod is at work.
func (d *daemon) lookAt(q *frozenPod) error {
	if !q.visits.look {
		return nil
	}
	before, err := d.cgroups.CPU(q.cgroup)
	if err != nil {
		return err
	}
	begin := time.Now()
	select {
	case <-q.ctx.Done():
		return nil
	case <-time.After(lookSpan):
	}
	after, err := d.cgroups.CPU(q.cgroup)
	if err != nil {
		return err
	}
	if cores := float64(after-before) / float64(time.Since(begin)); cores > lifecycle.BusyCores {
		return keptError(fmt.Sprintf("it works although nobody uses it: %.0f %% of a core", 100*cores))
	}
	return nil
}

// watchDoors begins to watch for processes that enter a pod's cgroup, and checks those inside.
func (d *daemon) watchDoors(q *frozenPod) (stop func(), err error) {
	if d.doors == nil {
		return nil, fmt.Errorf("processes that enter it cannot be watched: fs.inotify.max_user_instances may be too low")
	}
	doors, err := d.doors.Watch(q.cgroup, func() { notify(q.visits.begin) })
	if err != nil {
		return nil, fmt.Errorf("watching for processes that enter it: %w", err)
	}
	in, err := d.cgroups.Inside(q.cgroup)
	if err == nil && len(in.Guests) > 0 {
		err = keptError("somebody runs a command in it, such as with kubectl exec")
	}
	if err != nil {
		doors.Stop()
		return nil, err
	}
	// The program has to read it, and may then be busy for any time, so the pod runs.
	if err := doors.WatchPipes(d.cri.StdinPipes(doors.Folders()), func() { notify(q.visits.typed) }); err != nil {
		doors.Stop()
		return nil, fmt.Errorf("watching its standard input: %w", err)
	}
	q.visits.mains, q.visits.doors = in.Mains, doors
	return doors.Stop, nil
}

// guard looks after a frozen pod of a cluster until its thaw is known. stop ends the watch of its cgroup.
func (d *daemon) guard(q *frozenPod, stop func()) {
	defer stop()
	diag, err := openSockDiag(q.visits.netns)
	if err != nil {
		d.log.Warn("a frozen pod runs: its connections cannot be looked at", "address", q.addr(), "pod", q.id, "error", err)
		d.thaw(q, 0, "")
		return
	}
	defer diag.close()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	looked := false
	for {
		signalled := false
		select {
		case <-q.gone: // later than the end of q.ctx, when a client waits for the answer
			return
		case <-ticker.C:
			signalled = freezer.Inside{Mains: q.visits.mains}.Signalled()
			overlooked := !looked && q.visits.overlooked(diag)
			if looked = true; !signalled && !overlooked {
				continue
			}
		case <-q.visits.typed:
			d.thaw(q, 0, "")
			return
		case <-q.visits.begin:
		}
		if signalled || !d.visit(q, diag) {
			d.thaw(q, 0, "")
			return
		}
		looked = false
		ticker.Reset(lookEvery)
	}
}

// overlooked reports whether a pod was frozen although somebody waits for its answer.
func (v *visits) overlooked(diag *sockDiag) bool {
	owes, err := v.owes(diag)
	return err == nil && owes
}

// owes reports whether somebody waits for a pod's answer.
func (v *visits) owes(diag *sockDiag) (bool, error) {
	return diag.owesAnswer(visitMost, monotime.Now().Sub(v.since)+unreadMost)
}

// adoptVisits looks after a pod of a cluster that an earlier daemon has frozen. A visit may have been under way.
func (d *daemon) adoptVisits(q *frozenPod) {
	asked, err := d.lastAsked(q)
	var stop func()
	if err == nil {
		q.visits.last = asked
		stop, err = d.watch(q)
	}
	if err != nil {
		d.log.Warn("a pod that an earlier daemon has frozen runs", "address", q.addr(), "pod", q.id, "error", err)
		d.thaw(q, 0, "")
		return
	}
	notify(q.visits.begin)
	d.guard(q, stop)
}

// visit thaws a pod for a visitor, and freezes it again once it has nothing to do. It returns false if the pod should
// run.
func (d *daemon) visit(q *frozenPod, diag *sockDiag) bool {
	q.mu.Lock()
	err := q.ctx.Err()
	if err == nil {
		err = d.cgroups.Thaw(q.cgroup)
	}
	q.mu.Unlock()
	if err != nil {
		return false
	}
	quiet, pause := false, time.Duration(0)
	for end := time.Now().Add(visitMost); time.Now().Before(end); {
		pause = backoff.Next(pause, firstVisitPause, longestVisitPause)
		select {
		case <-q.ctx.Done():
			return false
		case <-time.After(pause):
		}
		if quiet { // this is the second check, as refreeze checks as well
			if again, err := d.refreeze(q, diag); err != nil || again {
				return again
			}
			quiet = false
			continue
		}
		needed, err := d.needed(q, diag)
		if err != nil {
			return false
		}
		if quiet = !needed; quiet {
			pause = 0
		}
	}
	return false
}

// needed reports whether a visitor still needs a pod. It fails if the pod should run: it was used, or has other
// containers.
func (d *daemon) needed(q *frozenPod, diag *sockDiag) (bool, error) {
	if asked, err := d.lastAsked(q); err != nil || asked > q.visits.last {
		return false, errUsed
	}
	in, err := d.cgroups.Inside(q.cgroup)
	if err != nil {
		return false, err
	}
	if !slices.Equal(in.Mains, q.visits.mains) {
		return false, errUsed
	}
	if len(in.Guests) > 0 {
		return true, nil
	}
	return q.visits.owes(diag)
}

// errUsed ends a visit to a pod that should run.
const errUsed = keptError("it is used")

// refreeze ends a visit. It returns false if another visitor has come. It fails if the pod should run.
func (d *daemon) refreeze(q *frozenPod, diag *sockDiag) (bool, error) {
	q.visits.local.drain()
	if err := d.setFrozen(q, false); err != nil { // so that the next packet is an event again
		return false, err
	}
	if err := d.setFrozen(q, true); err != nil {
		return false, err
	}
	q.visits.doors.Recount()
	if needed, err := d.needed(q, diag); needed || err != nil {
		return false, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.ctx.Err(); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(q.ctx, freezeTimeout)
	defer cancel()
	if err := d.cgroups.Freeze(ctx, q.cgroup); err != nil {
		return false, err
	}
	q.visits.since = monotime.Now()
	d.visited.Add(1)
	return true, nil
}
