// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/term"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/show/screen"
	"wangell.loutres.me/internal/status"
)

// Source provides what a live view shows. A Controller of package controller is one.
type Source interface {
	Status() []status.Status
	Pressure() []status.Pressure
	Wakes(key v1alpha1.Key) []lifecycle.Waterfall
	Subscribe(ctx context.Context) <-chan status.Event
}

// A live view is redrawn after an event, but at most every drawPause, and at least every drawEvery.
const (
	drawPause = 100 * time.Millisecond
	drawEvery = time.Second
)

// Live shows the services of an instance at the bottom of a terminal, with the progress of image pulls. Text written
// to it, such as a log, scrolls above.
type Live struct {
	screen *screen.Screen
	// lines are the latest lines. Write redraws them without asking the source, because the source may call Write.
	lines  atomic.Pointer[[]string]
	cancel context.CancelFunc // stops Follow's goroutine, which closes done; nil before Follow
	done   chan struct{}
}

// IsTerminal reports whether a file is a terminal that can show a live view.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" }

// NewLive returns a live view on a terminal. Before Follow, it shows only what is written to it.
func NewLive(terminal *os.File) *Live {
	l := &Live{}
	size := func() (int, int) {
		width, height, err := term.GetSize(int(terminal.Fd()))
		if err != nil {
			return 80, 24
		}
		return width, height
	}
	l.screen = screen.New(terminal, size, l.current)
	return l
}

// current returns the lines to draw.
func (l *Live) current(int) []string {
	if lines := l.lines.Load(); lines != nil {
		return *lines
	}
	return nil
}

var _ io.Writer = (*Live)(nil)

// Write implements io.Writer.
func (l *Live) Write(p []byte) (int, error) { return l.screen.Write(p) }

// Follow shows source until Close. It must be called at most once.
func (l *Live) Follow(source Source) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel, l.done = cancel, make(chan struct{})
	events := source.Subscribe(ctx)
	go func() {
		defer close(l.done)
		l.run(source, events)
	}()
}

// run draws until there are no more events.
func (l *Live) run(source Source, events <-chan status.Event) {
	p := pulls{}
	for {
		l.lines.Store(lines(source, p, time.Now()))
		if l.screen.Refresh() != nil {
			return // the terminal is gone; the instance is not
		}
		next := time.After(drawEvery)
		pause := time.After(drawPause)
	gather:
		for {
			select {
			case e, ok := <-events:
				if !ok {
					return
				}
				p.see(e)
				// Redraw soon, together with other events that come until then.
				next = pause
			case <-next:
				break gather
			}
		}
	}
}

// lines returns the lines to show: pulls, and the table of services.
func lines(source Source, p pulls, now time.Time) *[]string {
	var table bytes.Buffer
	// Writing to a buffer does not fail.
	_ = Services(&table, source.Status(), nil, source.Pressure(), source.Wakes(""), now)
	all := append([]string{""}, p.lines(now)...)
	all = append(all, strings.Split(strings.TrimRight(table.String(), "\n"), "\n")...)
	return &all
}

// Close draws a last time. It waits at most for patience, as writing to a stopped terminal blocks.
func (l *Live) Close(patience time.Duration) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if l.cancel != nil {
			l.cancel()
			<-l.done
		}
		_ = l.screen.Close() // if the terminal is gone, there is nowhere to report that
	}()
	select {
	case <-closed:
	case <-time.After(patience):
	}
}
