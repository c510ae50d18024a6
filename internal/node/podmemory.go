// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync/atomic"

	"wangell.loutres.me/internal/freezer"
)

// podMemory is what is known of the memory of a pod that is frozen from time to time.
type podMemory struct {
	// reclaimed is set once its memory was given back for the first time.
	reclaimed atomic.Bool
	// used is what the pod used between the last two times; nil if that is not known, or little.
	used atomic.Pointer[freezer.WorkingSet]
}

// smallUse is the size in bytes below which page faults bring back what a program needs sooner than fetching all of it,
// which takes processor time when the program needs it.
const smallUse = 16 << 20

// recordUse notes what a frozen pod has used since its memory was given back, before it is given back again.
func (d *daemon) recordUse(q *still) {
	if !q.memory.reclaimed.Load() {
		return // all that it has ever used would be taken for use
	}
	set, err := d.cgroups.WorkingSet(q.cgroup)
	if err != nil {
		d.log.Debug("it is not known which memory a pod uses", "address", q.addr(), "pod", q.id, "error", err)
		return
	}
	if set.Bytes < smallUse {
		set = nil
	}
	q.memory.used.Store(set)
}

// fetch has the memory that a thawed pod used the last time read in the background, so that a large program does not
// wait for each page of it.
func (d *daemon) fetch(q *still) {
	set := q.memory.used.Load()
	if set == nil {
		return
	}
	d.tasks.Go(func() {
		if err := set.Fetch(); err != nil {
			d.log.Debug("the memory of a thawed pod comes page by page", "pod", q.id, "error", err)
		}
	})
}
