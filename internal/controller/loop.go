// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"container/heap"
	"context"
	"errors"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/tasks"
)

// ErrClosed is returned by a controller that has ended.
var ErrClosed = errors.New("controller: closed")

// queueSize is the number of functions that wait for the loop before post blocks.
const queueSize = 4096

// loop runs functions one at a time on one goroutine, which owns all services. The functions must not block.
type loop struct {
	queue chan func()
	quit  chan struct{} // closed to end the loop
	done  chan struct{} // closed when the loop has ended
	// halted is set by the loop itself. From then on, nothing may be decided, started or stopped.
	halted bool
	// retired is set by the loop itself. From then on, nothing may be decided, because another controller will lead.
	retired bool
}

func newLoop() *loop {
	return &loop{queue: make(chan func(), queueSize), quit: make(chan struct{}), done: make(chan struct{})}
}

// run runs posted functions until quit. After each of them it calls turn, which returns the latest time of its next
// call; zero for none.
func (l *loop) run(turn func() monotime.Time) {
	defer close(l.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var armed monotime.Time
	for {
		select {
		case f := <-l.queue:
			f()
		case <-timer.C:
			armed = 0
		case <-l.quit:
			return
		}
		if at := turn(); at != armed {
			armed = at
			if at == 0 {
				timer.Stop()
			} else {
				timer.Reset(at.Sub(monotime.Now()))
			}
		}
	}
}

// post runs f on the loop. After the loop's end f is dropped.
func (l *loop) post(f func()) {
	select {
	case l.queue <- f:
	case <-l.done:
	}
}

// call runs f on the loop and waits for it. It returns false if the loop has ended.
func (l *loop) call(f func()) bool {
	ran := make(chan struct{})
	l.post(func() { f(); close(ran) })
	select {
	case <-ran:
		return true
	case <-l.done:
		return false
	}
}

// after runs f on the loop after a time, unless the loop has ended by then.
func (l *loop) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() { l.post(f) })
}

// idle reports whether the controller has stopped starting and stopping pods.
func (l *loop) idle() bool { return l.halted || l.retired }

// workers are the goroutines that call the runtime on behalf of the loop.
type workers struct {
	group   tasks.Group
	ctx     context.Context // of all work but stops
	stopCtx context.Context // of stops
	cancel  context.CancelFunc
	// cancelStops cancels stops only.
	cancelStops context.CancelFunc
}

func newWorkers() *workers {
	w := &workers{}
	ctx, cancel := context.WithCancel(context.Background())
	stopCtx, cancelStops := context.WithCancel(context.Background())
	w.ctx, w.stopCtx, w.cancel, w.cancelStops = ctx, stopCtx, func() { cancel(); cancelStops() }, cancelStops
	return w
}

// stop cancels all work and waits for its end.
func (w *workers) stop() {
	w.cancel()
	w.group.Stop()
}

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
