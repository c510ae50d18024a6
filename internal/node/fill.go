// SPDX-License-Identifier: Apache-2.0

package node

import (
	"log/slog"
	"sync"

	"wangell.loutres.me/internal/gate"
)

// Parts of a table's size from which it counts as almost full, and below which it does no more.
const (
	fillWarns = 0.8
	fillCalms = 0.7
)

// fillWatch reports tables of the gate that are almost full.
type fillWatch struct {
	mu   sync.Mutex
	full map[string]bool // tables reported as almost full
}

// check logs which tables have become almost full, or have room again.
func (w *fillWatch) check(fills []gate.Fill, log *slog.Logger) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range fills {
		part := float64(f.Used) / float64(f.Size)
		switch {
		case part >= fillWarns && !w.full[f.Table]:
			w.full[f.Table] = true
			log.Warn("a table of the gate is almost full: beyond its size new entries are refused", "table", f.Table, "of", f.Of,
				"entries", f.Used, "size", f.Size, "raise", f.Flag)
		case part < fillCalms && w.full[f.Table]:
			delete(w.full, f.Table)
			log.Info("a table of the gate has room again", "table", f.Table, "entries", f.Used, "size", f.Size)
		}
	}
}

// fills returns how full the gate's tables are. That of flows is left out until it was swept.
func (d *daemon) fills() []gate.Fill {
	fills := d.gate.Fills()
	if flows := d.flows.Load(); flows != nil {
		fills = append(fills, *flows...)
	}
	return fills
}

// checkFill reports tables of the gate that are almost full.
func (d *daemon) checkFill() { d.fill.check(d.fills(), d.log) }
