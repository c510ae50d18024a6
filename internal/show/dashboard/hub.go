// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

const (
	// every is the time between two updates.
	every = time.Second
	// linger is how long sampling continues without viewers, so that a browser that comes back finds the past.
	linger = 15 * time.Minute
	// maxViewers is the number of browsers that may watch at a time.
	maxViewers = 64
	// backlog is the number of updates that may wait for a browser. A slower browser is disconnected, and begins
	// anew.
	backlog = 16
)

// errBusy is returned to a browser when maxViewers watch.
var errBusy = errors.New("too many browsers watch: close one")

// errClosed is returned after the end.
var errClosed = errors.New("the dashboard has ended")

// viewer is a browser that watches.
type viewer struct {
	watch string        // the service whose pods it gets; empty for none
	out   chan []byte   // server-sent events; closed if the viewer is too slow, or at the end
	stale chan struct{} // has a value while its scope does not cover a namespace that has services
	scope Scope
	share string // what it sees, as board.share
}

// hub takes samples while somebody watches, and sends the changes to viewers.
type hub struct {
	source Source
	every  time.Duration
	linger time.Duration

	mu      sync.Mutex
	board   *board // nil while no samples are taken
	viewers map[*viewer]bool
	alone   time.Time // since when nobody watches
	stop    context.CancelFunc
	closed  bool
	running sync.WaitGroup
}

func newHub(source Source) *hub {
	return &hub{source: source, every: every, linger: linger, viewers: map[*viewer]bool{}}
}

// join adds a viewer. Its first message is everything that it may see.
func (h *hub) join(watch string, scope Scope) (*viewer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, errClosed
	case len(h.viewers) >= maxViewers:
		return nil, errBusy
	}
	if h.board == nil {
		h.start()
	}
	v := &viewer{watch: watch, scope: scope, out: make(chan []byte, backlog), stale: make(chan struct{}, 1)}
	v.share, _ = h.board.share(scope)
	h.viewers[v] = true
	v.out <- message("all", h.board.all(watch, scope))
	return v, nil
}

// renew gives a viewer another scope. If that changes what it sees, it gets everything again.
func (h *hub) renew(v *viewer, scope Scope) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.viewers[v] {
		return
	}
	v.scope = scope
	if share, _ := h.board.share(scope); share != v.share {
		v.share = share
		h.send(v, message("all", h.board.all(v.watch, scope)))
	}
}

// send sends a message to a viewer, or disconnects it if it does not keep up.
func (h *hub) send(v *viewer, m []byte) {
	select {
	case v.out <- m:
	default:
		delete(h.viewers, v)
		close(v.out)
	}
}

// leave removes a viewer.
func (h *hub) leave(v *viewer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.viewers, v)
	if len(h.viewers) == 0 {
		h.alone = time.Now()
	}
}

// start begins to take samples; the first one at once.
func (h *hub) start() {
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	b := newBoard()
	h.board = b
	events := h.source.Subscribe(ctx)
	h.running.Go(func() {
		for e := range events {
			h.mu.Lock()
			b.events.add(e)
			h.mu.Unlock()
		}
	})
	b.next(h.look())
	h.running.Go(func() {
		tick := time.NewTicker(h.every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if !h.update() {
					return
				}
			}
		}
	})
}

// look asks the source.
func (h *hub) look() moment {
	return moment{at: time.Now(), services: h.source.Status(), wakes: h.source.Wakes(""), pressure: h.source.Pressure()}
}

// update takes a sample and sends the changes. It returns false, and forgets everything, once nobody has watched for
// a while.
func (h *hub) update() bool {
	m := h.look()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	if len(h.viewers) == 0 && m.at.Sub(h.alone) > h.linger {
		h.board = nil
		h.stop()
		return false
	}
	tick := h.board.next(m)
	if len(h.viewers) == 0 {
		return true
	}
	type part struct{ share, watch string }
	made := map[part][]byte{}
	for v := range h.viewers {
		share, unknown := h.board.share(v.scope)
		if unknown {
			select {
			case v.stale <- struct{}{}:
			default: // it is full: the viewer knows already
			}
		}
		v.share = share
		core := part{share: share}
		if made[core] == nil {
			made[core] = message("tick", tick.of(v.scope))
		}
		out := made[core]
		if e := h.board.services[v.watch]; e != nil && sees(v.scope, v.watch) {
			detailed := part{share, v.watch}
			if made[detailed] == nil {
				made[detailed] = append(bytes.Clone(out), message("pods", e.detail)...)
			}
			out = made[detailed]
		}
		h.send(v, out)
	}
	return true
}

// close ends all viewers and the sampling.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	if h.stop != nil {
		h.stop()
	}
	for v := range h.viewers {
		close(v.out)
	}
	clear(h.viewers)
	h.mu.Unlock()
	h.running.Wait()
}

// message writes a server-sent event. JSON has no line breaks outside of strings, and escapes those.
func message(name string, v any) []byte {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\ndata: ")
	// Numbers and strings cannot fail to encode. Encode ends the line.
	_ = json.NewEncoder(&b).Encode(v)
	b.WriteByte('\n')
	return b.Bytes()
}
