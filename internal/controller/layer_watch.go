// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
)

// layerWatch looks at what running pods write into their own layers and emptyDir volumes, and has those ended that
// write more than they may.
type layerWatch struct {
	loop    *loop
	workers *workers
	table   *table
	events  *hub
	changed *changedSet
	runner  *runner
	log     *slog.Logger
	meter   runtime.LayerMeter
}

// run looks at the layers of running pods until the workers stop. One that is frozen is measured once.
func (w *layerWatch) run() {
	pause := layerEvery
	for {
		select {
		case <-w.workers.ctx.Done():
			return
		case <-time.After(pause):
		}
		var pods map[string]string
		limited := false
		volumes := map[string][]string{} // with limits, by pod
		w.loop.call(func() {
			pods, limited = w.table.serving(mayHaveWritten), w.limits()
			for id := range pods {
				if p := w.table.byRuntime[id]; p != nil {
					volumes[id] = slices.Collect(maps.Keys(p.service.spec.Spec.EmptyDirLimits()))
				}
			}
		})
		begin := time.Now()
		for id := range pods {
			m, err := w.meter.Layer(w.workers.ctx, id, volumes[id]...)
			if err != nil {
				if !errors.Is(err, runtime.ErrNotFound) && w.workers.ctx.Err() == nil {
					w.log.Debug("the layer of a pod cannot be measured", "pod", id, "error", err)
				}
				continue
			}
			w.loop.post(func() { w.note(id, m) })
		}
		pause = max(layerEvery, layerShare*time.Since(begin))
		if limited {
			pause = max(layerSoon, layerShare*time.Since(begin))
		}
	}
}

// mayHaveWritten reports whether a pod has run since the last look at its layer.
func mayHaveWritten(p *pod) bool { return p.still.report == nil || p.layer.at < p.still.report.At }

// note records the content of a pod's layer.
func (w *layerWatch) note(id string, m runtime.Layer) {
	p := w.table.byRuntime[id]
	if p == nil {
		return
	}
	spec := &p.service.spec.Spec
	if why := cmp.Or(layerFull(m, spec.LayerLimit()), emptyDirFull(m, spec.EmptyDirLimits())); why != "" && !p.layer.full {
		p.layer.full = true
		w.runner.giveUp(p, why)
		return
	}
	now := monotime.Now()
	if p.layer.at != 0 && now.Sub(p.layer.at) < layerEvery/2 { // a look for the limit: too short a time for a rate
		p.layer.bytes = m.Bytes
		return
	}
	first := p.layer.warning == ""
	if !p.layer.note(m, now) {
		return
	}
	if first {
		w.events.report(p.service.key, SeverityWarning, p.layer.warning)
	}
	w.changed.check(p.service)
}

// limits reports whether a pod may write only so much into its layer, or into an emptyDir volume.
func (w *layerWatch) limits() bool {
	for _, p := range w.table.byRuntime {
		if spec := &p.service.spec.Spec; spec.LayerLimit() > 0 || len(spec.EmptyDirLimits()) > 0 {
			return true
		}
	}
	return false
}
