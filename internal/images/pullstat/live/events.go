// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/typeurl/v2"

	"wangell.loutres.me/internal/images/pullstat"
)

const pollEach = 10 * time.Millisecond

const progressEvery = 250 * time.Millisecond

// barrierTopic is the topic of an event of this package: events before it have arrived once it has.
const barrierTopic = "/wangell/barrier"

// barrierIn bounds the wait for it.
const barrierIn = 30 * time.Second

// watcher collects what containerd publishes while it pulls.
type watcher struct {
	client   *client.Client
	progress func(done, total int64)
	cancel   context.CancelFunc
	tasks    sync.WaitGroup
	barriers chan string
	failed   chan error // holds the error that ended the stream of events

	mu     sync.Mutex
	events []pullstat.Event
	parts  map[string]part // by the key of the download
}

// part is a blob that containerd has downloaded in part.
type part struct{ done, total int64 }

// watch returns once containerd's events arrive. progress gets the bytes downloaded so far, a few times a second.
func watch(ctx context.Context, c *client.Client, progress func(done, total int64)) (*watcher, error) {
	inner, cancel := context.WithCancel(ctx)
	w := &watcher{
		client: c, progress: progress, cancel: cancel,
		barriers: make(chan string, 16), failed: make(chan error, 1), parts: map[string]part{},
	}
	stream, errs := c.EventService().Subscribe(inner)
	w.tasks.Go(func() { w.receive(inner, stream, errs) })
	if err := w.barrier(ctx, "begin"); err != nil {
		w.close()
		return nil, err
	}
	w.tasks.Go(func() { w.poll(inner) })
	return w, nil
}

// close ends the watch.
func (w *watcher) close() {
	w.cancel()
	w.tasks.Wait()
}

// collected returns the events so far.
func (w *watcher) collected() []pullstat.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]pullstat.Event(nil), w.events...)
}

func (w *watcher) add(e pullstat.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

// barrier returns once all events before it have been received. An event may be published before containerd has
// registered the subscription, so it is repeated.
func (w *watcher) barrier(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, barrierIn)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		if err := w.client.EventService().Publish(ctx, barrierTopic, &eventstypes.NamespaceCreate{Name: name}); err != nil {
			return fmt.Errorf("throw-away containerd accepts no events: %w", err)
		}
		for retry := false; !retry; {
			select {
			case got := <-w.barriers:
				if got == name {
					return nil
				}
			case <-again.C:
				retry = true
			case err := <-w.failed:
				return fmt.Errorf("events of the throw-away containerd: %w", err)
			case <-ctx.Done():
				return fmt.Errorf("events of the throw-away containerd do not arrive: %w", ctx.Err())
			}
		}
	}
}

// receive keeps the events that name blobs and snapshots.
func (w *watcher) receive(ctx context.Context, stream <-chan *events.Envelope, errs <-chan error) {
	for {
		select {
		case e := <-stream:
			payload, err := typeurl.UnmarshalAny(e.Event)
			if err != nil {
				continue // an event that this version does not know
			}
			switch p := payload.(type) {
			case *eventstypes.NamespaceCreate:
				if e.Topic == barrierTopic {
					select {
					case w.barriers <- p.Name:
					default: // no one is waiting any more
					}
				}
			case *eventstypes.ContentCreate:
				w.add(pullstat.Event{Time: e.Timestamp, Kind: pullstat.EventStored, ID: p.Digest})
			case *eventstypes.SnapshotPrepare:
				// The key of a snapshot for unpacking ends with a space and the chain ID.
				id := p.Key[strings.LastIndexByte(p.Key, ' ')+1:]
				w.add(pullstat.Event{Time: e.Timestamp, Kind: pullstat.EventPrepared, ID: id})
			case *eventstypes.SnapshotCommit:
				w.add(pullstat.Event{Time: e.Timestamp, Kind: pullstat.EventCommitted, ID: p.Name})
			}
		case err := <-errs:
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			w.failed <- err
			return
		case <-ctx.Done():
			return
		}
	}
}

// poll looks at the content store's unfinished blobs. One whose bytes have all been written is being committed since
// its last write.
func (w *watcher) poll(ctx context.Context) {
	tick := time.NewTicker(pollEach)
	defer tick.Stop()
	received := map[string]bool{}
	for reported := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		active, err := w.client.ContentStore().ListStatuses(ctx)
		if err != nil {
			continue // the pull itself returns the error
		}
		w.mu.Lock()
		for key, p := range w.parts {
			w.parts[key] = part{p.total, p.total} // unless it is still among the active
		}
		for _, s := range active {
			w.parts[s.Ref] = part{s.Offset, s.Total}
			at := strings.Index(s.Ref, "sha256:")
			if at < 0 || s.Total == 0 || s.Offset < s.Total || received[s.Ref] {
				continue
			}
			received[s.Ref] = true
			w.events = append(w.events,
				pullstat.Event{Time: s.UpdatedAt, Kind: pullstat.EventReceived, ID: s.Ref[at:]})
		}
		var done, total int64
		for _, p := range w.parts {
			done, total = done+p.done, total+p.total
		}
		w.mu.Unlock()
		if time.Since(reported) >= progressEvery {
			reported = time.Now()
			w.progress(done, total)
		}
	}
}

// logEvents returns the events in a log of containerd, or of its client library: JSON records, one a line.
func logEvents(r io.Reader) ([]pullstat.Event, error) {
	var found []pullstat.Event
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		var record struct {
			Time   time.Time       `json:"time"`
			Msg    string          `json:"msg"`
			Digest string          `json:"digest"`
			D      json.RawMessage `json:"d"`
		}
		// Lines that are not records, for example of a crash, are skipped.
		if json.Unmarshal(line, &record) == nil && record.Digest != "" {
			e := pullstat.Event{Time: record.Time, ID: record.Digest}
			switch record.Msg {
			case "fetch":
				e.Kind = pullstat.EventFetch
				found = append(found, e)
			case "diff applied":
				e.Kind = pullstat.EventApplied
				if json.Unmarshal(record.D, &e.Took) == nil {
					found = append(found, e)
				}
			}
		}
		if err != nil {
			return found, nil
		}
	}
}
