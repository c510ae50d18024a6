// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/mattn/go-runewidth"

	"wangell.loutres.me/internal/show/view"
)

// topKeys is the line with the keys.
const topKeys = "r rate  o open  n name  p pods  space stop/continue  ↑ ↓ scroll  q quit"

// runTop shows loads on a terminal, with keys, until ctx ends or the user ends it.
func runTop(
	ctx context.Context, sample func(context.Context) (view.Sample, error), every time.Duration, order view.TopOrder,
) error {
	m := &topModel{ctx: ctx, sample: sample, every: every, order: order, pods: true}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithoutSignalHandler()).Run()
	switch {
	case m.err != nil && ctx.Err() == nil:
		return m.err
	case ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted):
		return nil // Ctrl-C is a way to end it
	}
	return err
}

// sampled is the message with a sample.
type sampled struct {
	view.Sample
	err error
}

// topModel is the state of top on a terminal.
type topModel struct {
	ctx    context.Context //nolint:containedctx // of the program, whose commands have none
	sample func(context.Context) (view.Sample, error)
	every  time.Duration

	order         view.TopOrder
	pods, stopped bool
	before, after view.Sample
	top           int // lines of the table that are scrolled out
	width, height int
	err           error
}

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return m.take }

// take takes a sample.
func (m *topModel) take() tea.Msg {
	s, err := m.sample(m.ctx)
	return sampled{s, err}
}

// Update implements tea.Model.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case sampled:
		if m.err = msg.err; m.err != nil {
			return m, tea.Quit
		}
		if !m.stopped {
			m.before, m.after = m.after, msg.Sample
		}
		return m, tea.Tick(m.every, func(time.Time) tea.Msg { return m.take() })
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	}
	return m, nil
}

// key does what a key asks for.
func (m *topModel) key(k string) tea.Cmd {
	page := max(m.height-3, 1)
	switch k {
	case "q", "ctrl+c", "esc":
		return tea.Quit
	case "r":
		m.order = view.TopByRate
	case "o":
		m.order = view.TopByOpen
	case "n":
		m.order = view.TopByName
	case "p":
		m.pods = !m.pods
	case "space", " ":
		m.stopped = !m.stopped
	case "up", "k":
		m.top--
	case "down", "j":
		m.top++
	case "pgup":
		m.top -= page
	case "pgdown":
		m.top += page
	case "home", "g":
		m.top = 0
	}
	return nil
}

// View implements tea.Model.
func (m *topModel) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	return v
}

// lines returns the content of the terminal: a summary, the head of the table, as many rows as fit, and the keys.
func (m *topModel) lines() []string {
	if m.before.At.IsZero() {
		return []string{"measuring…"}
	}
	loads := view.Loads(m.before, m.after, m.order)
	var open uint32
	var rate float64
	for i := range loads {
		open, rate = open+loads[i].Open, rate+loads[i].NewPerSecond
		if !m.pods {
			loads[i].Pods = nil
		}
	}
	var table bytes.Buffer
	_ = view.Top(&table, loads) // writing to a buffer does not fail
	body := strings.Split(strings.TrimRight(table.String(), "\n"), "\n")
	head, rows := body[0], body[1:]
	room := max(m.height-3, 1)
	m.top = max(min(m.top, len(rows)-room), 0)
	title := fmt.Sprintf("%s  %d services  %d open  %.1f new/s  by %s", m.after.At.Format(time.TimeOnly), len(loads), open,
		rate, m.order)
	if m.stopped {
		title += "  stopped"
	}
	if more := len(rows) - room; more > 0 {
		title += fmt.Sprintf("  lines %d-%d of %d", m.top+1, m.top+room, len(rows))
	}
	out := append([]string{title, head}, rows[m.top:min(m.top+room, len(rows))]...)
	out = append(out, topKeys)
	for i := range out {
		out[i] = runewidth.Truncate(out[i], max(m.width, 1), "…")
	}
	return out
}
