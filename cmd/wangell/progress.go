// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/internal/show/screen"
)

// progressAfter is how long a command runs before it shows progress.
const progressAfter = time.Second

// imageProgress is what the line of progress shows.
type imageProgress struct {
	begin time.Time

	mu          sync.Mutex
	stage       string
	done, total int64
	drawn       string
}

// showProgress returns a function that reports progress in a line at the bottom of the terminal, if standard error is
// one, and a function that removes the line. Nothing is shown in the first second.
func showProgress() (report func(stage string, done, total int64), stop func()) {
	fd := int(os.Stderr.Fd())
	if !term.IsTerminal(fd) {
		return func(string, int64, int64) {}, func() {}
	}
	p := &imageProgress{begin: time.Now()}
	s := screen.New(os.Stderr, func() (int, int) {
		width, height, err := term.GetSize(fd)
		if err != nil {
			return 80, 24
		}
		return width, height
	}, p.lines)
	report = func(stage string, done, total int64) {
		if p.set(stage, done, total) {
			_ = s.Refresh() // a terminal that is gone shows no progress
		}
	}
	return report, func() {
		p.set("", 0, 0)
		_ = s.Close()
	}
}

// set sets the line, and reports whether it has changed.
func (p *imageProgress) set(stage string, done, total int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stage, p.done, p.total = stage, done, total
	line := p.line()
	changed := line != p.drawn && time.Since(p.begin) >= progressAfter
	if changed {
		p.drawn = line
	}
	return changed
}

func (p *imageProgress) lines(int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if line := p.line(); line != "" {
		return []string{line}
	}
	return nil
}

func (p *imageProgress) line() string {
	switch {
	case p.stage == "":
		return ""
	case p.stage == live.StagePull && p.total > 0 && p.done == p.total:
		return fmt.Sprintf("%s: downloaded %.1f MB, unpacking", p.stage, float64(p.total)/1e6)
	case p.total == 0:
		return p.stage
	}
	return p.stage + " " + screen.Bar(p.done, p.total, 30)
}
