// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
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

// check logs which tables have become almost full, or have room again, and calls report for the former.
func (w *fillWatch) check(fills []gate.Fill, log *slog.Logger, report func(text string)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range fills {
		part := float64(f.Used) / float64(f.Size)
		switch {
		case part >= fillWarns && !w.full[f.Table]:
			w.full[f.Table] = true
			log.Warn("a table of the gate is almost full", "table", f.Table, "entries", f.Used, "size", f.Size,
				"raise", "--"+f.Table)
			if report != nil {
				report(fmt.Sprintf("the gate has %d of at most %d %s: raise sizes.%s (--%s)", f.Used, f.Size, f.Table, f.Table,
					f.Table))
			}
		case part < fillCalms && w.full[f.Table]:
			delete(w.full, f.Table)
			log.Info("a table of the gate has room again", "table", f.Table, "entries", f.Used, "size", f.Size)
		}
	}
}

// checkFill reports tables of the gate that are almost full.
func (d *daemon) checkFill() { d.fill.check(d.gate.Fills(), d.log, d.cfg.AlmostFull) }
