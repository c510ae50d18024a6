// SPDX-License-Identifier: Apache-2.0

package kube

import "sync"

// queue delivers values in order on a channel and never blocks the sender. It is unbounded: it carries pods and their
// exits, which are few.
type queue[T any] struct {
	ch      chan T
	mu      sync.Mutex
	values  []T
	pending chan struct{} // holds an element while there are values
	quit    chan struct{}
	done    chan struct{}
}

func newQueue[T any]() *queue[T] {
	q := &queue[T]{
		ch: make(chan T), pending: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	go q.run()
	return q
}

func (q *queue[T]) put(v T) {
	q.mu.Lock()
	q.values = append(q.values, v)
	q.mu.Unlock()
	select {
	case q.pending <- struct{}{}:
	default:
	}
}

func (q *queue[T]) run() {
	defer close(q.done)
	defer close(q.ch)
	for {
		select {
		case <-q.pending:
		case <-q.quit:
			return
		}
		q.mu.Lock()
		values := q.values
		q.values = nil
		q.mu.Unlock()
		for _, v := range values {
			select {
			case q.ch <- v:
			case <-q.quit:
				return
			}
		}
	}
}

// close stops the delivery and closes the channel. Values that were not received are dropped.
func (q *queue[T]) close() {
	close(q.quit)
	<-q.done
}
