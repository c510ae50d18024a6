// SPDX-License-Identifier: Apache-2.0

// Package screen keeps a few lines at the bottom of a terminal up to date while other lines, such as a log, scroll
// above them.
package screen

import (
	"bytes"
	"io"
	"strings"
	"sync"

	"github.com/mattn/go-runewidth"
)

// ANSI control sequences (ECMA-48).
const (
	clearBelow = "\x1b[J"
	upOne      = "\x1b[A"
)

// Screen draws a region of lines in place. It is an io.Writer for the lines above the region. It is safe for concurrent
// use.
type Screen struct {
	out    io.Writer
	size   func() (width, height int)
	render func(width int) []string

	mu      sync.Mutex
	drawn   int    // lines of the region that are on the terminal
	partial []byte // the beginning of a line that is not complete yet
	closed  bool
}

// New returns a screen on a terminal. size returns the terminal's size in columns and lines. render returns the lines
// of the region, which are cut at the right edge and the bottom of the terminal. Nothing is drawn before Refresh.
func New(out io.Writer, size func() (width, height int), render func(width int) []string) *Screen {
	return &Screen{out: out, size: size, render: render}
}

// Refresh redraws the region.
func (s *Screen) Refresh() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	return s.draw(nil)
}

// Write implements io.Writer. Complete lines appear above the region at once, an incomplete one with its newline.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.out.Write(p)
	}
	s.partial = append(s.partial, p...)
	end := bytes.LastIndexByte(s.partial, '\n') + 1
	if end == 0 {
		return len(p), nil
	}
	err := s.draw(s.partial[:end])
	s.partial = append(s.partial[:0], s.partial[end:]...)
	return len(p), err
}

// Close draws the region a last time. What is written later appears below it.
func (s *Screen) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var rest []byte
	if len(s.partial) > 0 {
		rest = append(s.partial, '\n')
	}
	return s.draw(rest)
}

// draw replaces the region by the lines above, which stay, and the region below them. A single write avoids flicker.
func (s *Screen) draw(above []byte) error {
	width, height := s.size()
	var b strings.Builder
	if s.drawn > 0 {
		b.WriteString("\r" + strings.Repeat(upOne, s.drawn) + clearBelow)
	}
	b.Write(above)
	lines := s.render(width)
	// The cursor is on the line below the region. The top of a region higher than the terminal would be out of reach.
	if most := max(height-1, 1); len(lines) > most {
		lines = lines[:most]
	}
	for _, line := range lines {
		// The last column stays free, as some terminals wrap when it is written.
		b.WriteString(runewidth.Truncate(line, max(width-1, 1), "…"))
		b.WriteByte('\n')
	}
	s.drawn = len(lines)
	_, err := io.WriteString(s.out, b.String())
	return err
}
