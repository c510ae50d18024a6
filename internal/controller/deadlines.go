// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"container/heap"

	"wangell.loutres.me/internal/base/monotime"
)

// deadlines is a heap of the services that wait for a time, the earliest first.
type deadlines []*service

// set changes the time for which a service waits; zero for none.
func (d *deadlines) set(s *service, at monotime.Time) {
	s.due = at
	switch {
	case at == 0 && s.heapPos >= 0:
		heap.Remove(d, s.heapPos)
	case at != 0 && s.heapPos >= 0:
		heap.Fix(d, s.heapPos)
	case at != 0:
		heap.Push(d, s)
	}
}

// first returns the earliest time; zero if there is none.
func (d deadlines) first() monotime.Time {
	if len(d) == 0 {
		return 0
	}
	return d[0].due
}

// Len implements heap.Interface.
func (d deadlines) Len() int { return len(d) }

// Less implements heap.Interface.
func (d deadlines) Less(i, j int) bool { return d[i].due < d[j].due }

// Swap implements heap.Interface.
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].heapPos, d[j].heapPos = i, j
}

// Push implements heap.Interface.
func (d *deadlines) Push(x any) {
	s := x.(*service)
	s.heapPos = len(*d)
	*d = append(*d, s)
}

// Pop implements heap.Interface.
func (d *deadlines) Pop() any {
	old := *d
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*d = old[:len(old)-1]
	s.heapPos = -1
	return s
}
