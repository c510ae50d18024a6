// SPDX-License-Identifier: Apache-2.0

package kube

import "sync"

// outbox delivers values in order to whoever reads its channel, and never makes the sender wait. What nobody reads is
// kept: its values are pods and their ends, of which there are not many.
type outbox[T any] struct {
	ch   chan T
	mu   sync.Mutex
	vals []T
	more chan struct{} // has an element while values are there
	quit chan struct{}
	done chan struct{}
}

func newOutbox[T any]() *outbox[T] {
	o := &outbox[T]{ch: make(chan T), more: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go o.run()
	return o
}

func (o *outbox[T]) put(v T) {
	o.mu.Lock()
	o.vals = append(o.vals, v)
	o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default:
	}
}

func (o *outbox[T]) run() {
	defer close(o.done)
	defer close(o.ch)
	for {
		select {
		case <-o.more:
		case <-o.quit:
			return
		}
		o.mu.Lock()
		vals := o.vals
		o.vals = nil
		o.mu.Unlock()
		for _, v := range vals {
			select {
			case o.ch <- v:
			case <-o.quit:
				return
			}
		}
	}
}

// close ends the delivery and closes the channel.
func (o *outbox[T]) close() {
	close(o.quit)
	<-o.done
}
