// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"sync"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// relists are the pauses between lists of all pods after a stream was opened: one at once, for existing pods; one
// soon after, because nothing says when the runtime begins to send events; then one a minute, in case an event is
// lost.
var relists = []time.Duration{0, 100 * time.Millisecond, time.Second, time.Minute}

// queue is an unbounded queue of events. Whatever reads the stream must never block: a runtime sends to its clients in
// turn.
type queue struct {
	mu     sync.Mutex
	events []*criv1.ContainerEventResponse
	err    error
	ready  chan struct{} // holds an element while there is an event or an error
}

func (q *queue) put(e *criv1.ContainerEventResponse, err error) {
	q.mu.Lock()
	if err != nil {
		q.err = err
	} else {
		q.events = append(q.events, e)
	}
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *queue) take() (events []*criv1.ContainerEventResponse, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	events, q.events = q.events, nil
	return events, q.err
}

// follow reads the runtime's events until the stream ends. connected is whether the runtime answered.
func (w *Watcher) follow(ctx context.Context) (connected bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.client.GetContainerEvents(ctx, &criv1.GetEventsRequest{})
	if err != nil {
		return false, err
	}
	q := &queue{ready: make(chan struct{}, 1)}
	var reader sync.WaitGroup
	defer reader.Wait()
	defer cancel()
	reader.Go(func() {
		for {
			e, err := stream.Recv()
			if err == nil && !w.pods.concerns(e) {
				continue
			}
			q.put(e, err)
			if err != nil {
				return
			}
		}
	})
	next := 0
	timer := time.NewTimer(relists[next])
	defer timer.Stop()
	for {
		select {
		case <-q.ready:
			events, err := q.take()
			for _, e := range events {
				if err := w.handle(ctx, e); err != nil {
					return connected, err
				}
			}
			if err != nil {
				return connected, err
			}
		case <-timer.C:
			if err := w.list(ctx); err != nil {
				return connected, err
			}
			if !connected {
				connected = true
				w.cfg.Log.Info("watching the container runtime", "endpoint", w.cfg.Endpoint, "pods", len(w.pods.known))
			}
			next = min(next+1, len(relists)-1)
			timer.Reset(relists[next])
		}
	}
}

// handle handles an event, which has the state of the whole pod.
func (w *Watcher) handle(ctx context.Context, e *criv1.ContainerEventResponse) error {
	s := e.PodSandboxStatus
	if s == nil {
		if e.ContainerEventType == criv1.ContainerEventType_CONTAINER_DELETED_EVENT {
			w.pods.networkGone(e.ContainerId, e.CreatedAt)
		}
		return nil
	}
	ready := s.State == criv1.PodSandboxState_SANDBOX_READY
	if ready {
		if err := w.learn(ctx, s.Id); err != nil {
			return err
		}
	}
	w.pods.containers(s.Id, e.ContainersStatuses)
	if !ready || e.ContainerId == s.Id && e.ContainerEventType == criv1.ContainerEventType_CONTAINER_DELETED_EVENT {
		w.pods.networkGone(s.Id, e.CreatedAt)
	}
	return nil
}
