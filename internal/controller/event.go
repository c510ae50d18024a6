// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"time"

	"wangell.loutres.me/internal/runtime"
)

// EventKind tells what an Event is about.
type EventKind string

// The kinds of events.
const (
	EventReport EventKind = "report" // something to tell a user: Severity and Text
	EventState  EventKind = "state"  // a service has come to State
	EventPull   EventKind = "pull"   // an image is fetched: Image, Done, Total
	EventDaemon EventKind = "daemon" // the daemon of Node came or went: Text
)

// Severities of a report.
const (
	SeverityInfo    = "info"
	SeverityWarning = "warning"
	SeverityError   = "error"
)

// Event is something that happened.
type Event struct {
	Time     time.Time   `json:"time"`
	Kind     EventKind   `json:"kind"`
	Service  runtime.Key `json:"service,omitempty"`
	Severity string      `json:"severity,omitempty"`
	Text     string      `json:"text,omitempty"`
	State    string      `json:"state,omitempty"`
	Image    string      `json:"image,omitempty"`
	// Done and Total are bytes of an image's layers; Total is 0 while not known.
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"`
	Node  string `json:"node,omitempty"`
	// Lost is how many events before this one the subscriber missed because it was too slow.
	Lost int `json:"lost,omitempty"`
}

// subscriberBuffer is how many events wait for a subscriber before it begins to miss some.
const subscriberBuffer = 1024

// hub gives events to subscribers, and never waits for one.
type hub struct {
	mu     sync.Mutex
	subs   map[*subscriber]struct{}
	closed bool
}

type subscriber struct {
	ch   chan Event
	lost int
}

func (h *hub) emit(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subs {
		e.Lost = s.lost
		select {
		case s.ch <- e:
			s.lost = 0
		default:
			s.lost++
		}
	}
}

func (h *hub) subscribe(ctx context.Context) <-chan Event {
	s := &subscriber{ch: make(chan Event, subscriberBuffer)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		close(s.ch)
		return s.ch
	}
	if h.subs == nil {
		h.subs = map[*subscriber]struct{}{}
	}
	h.subs[s] = struct{}{}
	context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, there := h.subs[s]; there {
			delete(h.subs, s)
			close(s.ch)
		}
	})
	return s.ch
}

// close ends all subscriptions, once what is in their channels was read.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.subs {
		close(s.ch)
	}
	h.subs = nil
}
