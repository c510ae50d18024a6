// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// queueSize bounds what waits for a slow reader, in bytes.
const queueSize = 1 << 20

// Queue writes to w what is written to it, on a goroutine of its own. A terminal that is stopped (Ctrl-S) or a pipe
// that nobody reads thus holds up nobody: what does not fit into the queue is lost, and the reader is told how much.
type Queue struct {
	w    io.Writer
	done chan struct{} // closed when the goroutine has ended

	mu     sync.Mutex
	more   *sync.Cond
	queue  []byte
	lost   int // writes that did not fit
	closed bool
}

// NewQueue returns a queue in front of w.
func NewQueue(w io.Writer) *Queue {
	q := &Queue{w: w, done: make(chan struct{})}
	q.more = sync.NewCond(&q.mu)
	go q.run()
	return q
}

// Write implements io.Writer. It never waits and never fails.
func (q *Queue) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
	case len(q.queue)+len(p) > queueSize:
		q.lost++
	default:
		if q.lost > 0 {
			q.queue = fmt.Appendf(q.queue, "(%d lines lost: nobody read them)\n", q.lost)
			q.lost = 0
		}
		q.queue = append(q.queue, p...)
		q.more.Signal()
	}
	return len(p), nil
}

func (q *Queue) run() {
	defer close(q.done)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.queue) == 0 {
			if q.closed {
				return
			}
			q.more.Wait()
		}
		// The next batch is collected in a buffer of its own while this one is written.
		batch := q.queue
		q.queue = nil
		q.mu.Unlock()
		_, _ = q.w.Write(batch) // a log has nobody to tell that it cannot be written
		q.mu.Lock()
	}
}

// Close writes what waits, for at most patience, and ends. What is written later is lost.
func (q *Queue) Close(patience time.Duration) {
	q.mu.Lock()
	q.closed = true
	q.more.Signal()
	q.mu.Unlock()
	select {
	case <-q.done:
	case <-time.After(patience):
	}
}
