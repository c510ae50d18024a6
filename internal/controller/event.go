// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	EventReport EventKind = "report" // a message for users: Severity and Text
	EventState  EventKind = "state"  // a service has entered State
	EventPull   EventKind = "pull"   // an image is being fetched: Image, Done, Total
	EventImages EventKind = "images" // no node could get the images of a service ahead of need: Severity and Text
	EventDaemon EventKind = "daemon" // the daemon of Node has connected or disconnected: Text
	// EventPressure: something is scarce in the gate of Node: Reason and Text. Without a Service it concerns the node.
	EventPressure EventKind = "pressure"
)

// Severities of a report.
const (
	SeverityInfo    = "info"
	SeverityWarning = "warning"
	SeverityError   = "error"
)

// Event is something that happened.
type Event struct {
	Time     time.Time    `json:"time"`
	Kind     EventKind    `json:"kind"`
	Service  v1alpha1.Key `json:"service,omitempty"`
	Severity string       `json:"severity,omitempty"`
	Text     string       `json:"text,omitempty"`
	State    string       `json:"state,omitempty"`
	Image    string       `json:"image,omitempty"`
	// Done and Total are bytes of an image's layers; Total is 0 while it is not known.
	Done  int64  `json:"done,omitempty"`
	Total int64  `json:"total,omitempty"`
	Node  string `json:"node,omitempty"`
	// Reason is that of a Pressure.
	Reason string `json:"reason,omitempty"`
	// Lost is the number of events before this one that the subscriber missed because it was too slow.
	Lost int `json:"lost,omitempty"`
}

// subscriberBuffer is the number of events that wait for a subscriber before it misses some.
const subscriberBuffer = 1024

// hub distributes events to subscribers, and never waits for one.
type hub struct {
	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	closed      bool
}

type subscriber struct {
	ch   chan Event
	lost int
}

// report emits a message about a service, or about the whole installation if key is empty.
func (h *hub) report(key v1alpha1.Key, severity, text string) {
	h.emit(Event{Time: time.Now(), Kind: EventReport, Service: key, Severity: severity, Text: text})
}

// pressure emits the news of a scarce resource on a node, for a service or, if key is empty, for the whole node.
func (h *hub) pressure(key v1alpha1.Key, node string, p Pressure) {
	h.emit(Event{
		Time: time.Now(), Kind: EventPressure, Service: key, Node: node, Severity: SeverityWarning, Reason: p.Reason,
		Text: p.Message,
	})
}

func (h *hub) emit(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.subscribers {
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
	if h.subscribers == nil {
		h.subscribers = map[*subscriber]struct{}{}
	}
	h.subscribers[s] = struct{}{}
	context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, there := h.subscribers[s]; there {
			delete(h.subscribers, s)
			close(s.ch)
		}
	})
	return s.ch
}

// close ends all subscriptions, once the events in their channels have been read.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for s := range h.subscribers {
		close(s.ch)
	}
	h.subscribers = nil
}

// writeLog writes events to the log until the channel is closed. It has a goroutine of its own because a log may be
// slow.
func writeLog(events <-chan Event, log *slog.Logger) {
	levels := map[string]slog.Level{
		SeverityInfo: slog.LevelInfo, SeverityWarning: slog.LevelWarn, SeverityError: slog.LevelError,
	}
	for e := range events {
		if e.Lost > 0 {
			log.Warn("events were not logged: the log is too slow", "events", e.Lost)
		}
		switch {
		case (e.Kind == EventReport || e.Kind == EventPressure || e.Kind == EventImages) && e.Service != "":
			text := fmt.Sprintf("service %s: %s", e.Service, e.Text)
			log.Log(context.Background(), levels[e.Severity], text, "service", string(e.Service))
		case e.Kind == EventReport || e.Kind == EventPressure:
			log.Log(context.Background(), levels[e.Severity], e.Text)
		case e.Kind == EventState:
			log.Debug("state", "service", string(e.Service), "state", e.State)
		}
	}
}
