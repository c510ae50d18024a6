// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
)

// subscriberBuffer is the number of events that wait for a subscriber before it misses some.
const subscriberBuffer = 1024

// hub distributes events to subscribers, and never waits for one.
type hub struct {
	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
	closed      bool
}

type subscriber struct {
	ch   chan status.Event
	lost int
}

// report emits a message about a service, or about the whole installation if key is empty. reason may be empty: see
// v1alpha1.EventReason.
func (h *hub) report(key v1alpha1.Key, reason v1alpha1.EventReason, severity, text string) {
	h.emit(status.Event{
		Time: time.Now(), Kind: status.EventReport, Service: key, Reason: reason, Severity: severity, Text: text,
	})
}

// pressure emits the news of a scarce resource on a node, for a service or, if key is empty, for the whole node.
func (h *hub) pressure(key v1alpha1.Key, node string, p status.Pressure) {
	h.emit(status.Event{
		Time: time.Now(), Kind: status.EventPressure, Service: key, Node: node,
		Severity: status.SeverityWarning, Reason: p.Reason, Text: p.Message,
	})
}

func (h *hub) emit(e status.Event) {
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

func (h *hub) subscribe(ctx context.Context) <-chan status.Event {
	s := &subscriber{ch: make(chan status.Event, subscriberBuffer)}
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
func writeLog(events <-chan status.Event, log *slog.Logger) {
	levels := map[string]slog.Level{
		status.SeverityInfo: slog.LevelInfo, status.SeverityWarning: slog.LevelWarn, status.SeverityError: slog.LevelError,
	}
	for e := range events {
		if e.Lost > 0 {
			log.Warn("events were not logged: the log is too slow", "events", e.Lost)
		}
		switch {
		case e.Service != "" &&
			(e.Kind == status.EventReport || e.Kind == status.EventPressure || e.Kind == status.EventImages):
			text := fmt.Sprintf("service %s: %s", e.Service, e.Text)
			log.Log(context.Background(), levels[e.Severity], text, "service", string(e.Service))
		case e.Kind == status.EventReport || e.Kind == status.EventPressure:
			log.Log(context.Background(), levels[e.Severity], e.Text)
		case e.Kind == status.EventState:
			log.Debug("state", "service", string(e.Service), "state", e.State)
		}
	}
}
