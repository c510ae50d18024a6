// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// queueSize bounds the data that waits for a slow reader, in bytes.
const queueSize = 1 << 20

// Queue is a writer that passes its input to another writer on a goroutine of its own. So a stopped terminal
// (Ctrl-S), or a pipe that is not read, blocks nothing. Output that does not fit into the queue is lost, and the
// reader sees how much.
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

// Write implements io.Writer. It does not block and does not fail.
func (q *Queue) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
	case len(q.queue)+len(p) > queueSize:
		q.lost++
	default:
		if q.lost > 0 {
			q.queue = fmt.Appendf(q.queue, "(%d lines lost: the output was not read)\n", q.lost)
			q.lost = 0
		}
		q.queue = append(q.queue, p...)
		q.more.Signal()
	}
	return len(p), nil
}

// run writes batches until Close.
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
		_, _ = q.w.Write(batch) // if a log cannot be written, there is nowhere to report that
		q.mu.Lock()
	}
}

// Close writes the queued output, for at most patience. Later output is lost.
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
