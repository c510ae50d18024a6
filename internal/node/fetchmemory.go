// SPDX-License-Identifier: Apache-2.0

package node

// recordUse records the memory that a frozen pod has used since it was given back, before it is given back again.
func (d *daemon) recordUse(q *still) {
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

// fetch reads, in the background, the memory that a thawed pod used the last time, so that a large program does not
// wait for each page of it. It fetches for one pod at a time: when many are thawed at once, the programs come first.
func (d *daemon) fetch(q *still) {
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
