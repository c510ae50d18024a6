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

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/screen"
)

// Source is what a live view shows; a controller.Controller is one.
type Source interface {
	Status() []controller.Status
	Wakes(key runtime.Key) []lifecycle.Waterfall
	Subscribe(ctx context.Context) <-chan controller.Event
}

// The pace of a live view: it is drawn after an event, but not more often than drawPause, and at least every drawEvery.
const (
	drawPause = 100 * time.Millisecond
	drawEvery = time.Second
)

// Live shows the services of an instance on a terminal, at its bottom, with the progress of image pulls.
// What is written to it, such as a log, scrolls by above.
type Live struct {
	screen *screen.Screen
	// lines are the last ones made. Those who write draw them anew, and may be parts of the source, which cannot be asked then.
	lines  atomic.Pointer[[]string]
	cancel context.CancelFunc // ends Follow's goroutine, which closes done; nil before Follow
	done   chan struct{}
}

// IsTerminal tells whether a file is a terminal on which a live view can be.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" }

// NewLive makes a live view on a terminal. It shows only what is written to it before Follow.
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

// Follow begins to show source, until Close. It is called at most once.
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
func (l *Live) run(source Source, events <-chan controller.Event) {
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
				// Soon, with what else happens meanwhile.
				next = pause
			case <-next:
				break gather
			}
		}
	}
}

// lines is all that is shown: pulls and the table of services.
func lines(source Source, p pulls, now time.Time) *[]string {
	var table bytes.Buffer
	_ = Services(&table, source.Status(), source.Wakes(""), now) // a buffer takes everything
	all := append([]string{""}, p.lines(now)...)
	all = append(all, strings.Split(strings.TrimRight(table.String(), "\n"), "\n")...)
	return &all
}

// Close draws a last time and leaves the terminal as it is then. A terminal that takes nothing is waited for at most
// for patience.
func (l *Live) Close(patience time.Duration) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if l.cancel != nil {
			l.cancel()
			<-l.done
		}
		_ = l.screen.Close() // without its terminal, the view has nobody left to tell
	}()
	select {
	case <-closed:
	case <-time.After(patience):
	}
}
