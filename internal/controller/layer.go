// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

const (
	// layerEvery is the pause between two looks at the layers of all pods, or layerShare times as long as a look took.
	layerEvery = 10 * time.Second
	layerShare = 100
	// layerSoon is the pause while a pod has a limit.
	layerSoon = time.Second
	// A pod is reported once it has written layerMuch into its layer, or writes at layerFast. Less is usually logs
	// and process IDs.
	layerMuch = 16 << 20
	layerFast = 1 << 20 // bytes per second
)

// scratch are folders for temporary files, which cause no warning.
var scratch = []string{"/tmp", "/var/tmp", "/run", "/var/run", "/var/cache", "/dev"}

// layer records what a pod has written into its own layer.
type layer struct {
	at      monotime.Time // of the last look; zero before the first
	bytes   int64
	lasting int64  // bytes that are not in scratch folders
	told    int64  // lasting when the warning was written
	warning string // empty if there is nothing to warn of
	full    bool   // the pod is being ended, because it has written more than it may, here or into an emptyDir
}

// layerFull explains why a pod is ended because it has written more than limit bytes into its layer; empty if it has
// not.
func layerFull(m runtime.Layer, limit int64) string {
	if limit == 0 || m.Bytes <= limit {
		return ""
	}
	_, folder := judge(m)
	mostly := ""
	if folder != "" {
		mostly = ", mostly " + folder
	}
	return fmt.Sprintf("its layer is full: it has written %s%s, and spec.layer.sizeLimit is %s: raise it, or mount a "+
		"volume at %s", text.Bytes(m.Bytes), mostly, text.BytesLimit(limit), cmp.Or(folder, "the folder"))
}

// emptyDirFull says why a pod is ended one of whose emptyDir volumes holds more than its limit, in bytes; empty if none
// does.
func emptyDirFull(m runtime.Layer, limits map[string]int64) string {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if held := m.EmptyDirs[name]; held > limits[name] {
			return fmt.Sprintf("its volume %s is full: it holds %s, and emptyDir.sizeLimit is %s: raise it, or remove files "+
				"that are not needed any more", name, text.Bytes(held), text.BytesLimit(limits[name]))
		}
	}
	return ""
}

// note records a look, and reports whether the warning has changed. A warning stays until the pod ends; it is written
// anew once the layer has doubled.
func (l *layer) note(m runtime.Layer, now monotime.Time) bool {
	lasting, folder := judge(m)
	rate := 0.0
	if l.at != 0 && now > l.at {
		rate = float64(lasting-l.lasting) / now.Sub(l.at).Seconds()
	}
	l.at, l.bytes, l.lasting = now, m.Bytes, lasting
	if lasting < layerMuch && rate < layerFast || l.warning != "" && lasting < 2*l.told {
		return false
	}
	l.told, l.warning = lasting, layerWarning(lasting, rate, folder)
	return true
}

// judge returns the bytes of a layer outside scratch folders, and the deepest folder that holds most of them.
func judge(m runtime.Layer) (lasting int64, folder string) {
	lasting = m.Bytes
	for _, s := range scratch {
		lasting -= m.Folders[s]
	}
	for _, f := range slices.Sorted(maps.Keys(m.Folders)) {
		deeper := strings.Count(f, "/") > strings.Count(folder, "/")
		if !slices.ContainsFunc(scratch, func(s string) bool { return f == s || strings.HasPrefix(f, s+"/") }) &&
			3*m.Folders[f] >= 2*lasting && lasting > 0 && deeper {
			folder = f
		}
	}
	return lasting, folder
}

// layerWarning returns the warning for a pod, with what to write into the manifest.
func layerWarning(bytes int64, rate float64, folder string) string {
	what := "has written " + text.Bytes(bytes)
	if rate >= layerFast {
		what = fmt.Sprintf("writes %s/s (%s so far)", text.Bytes(int64(rate)), text.Bytes(bytes))
	}
	mostly := ""
	if folder != "" {
		mostly = ", mostly " + folder
	}
	return fmt.Sprintf("%s into its own layer%s: that is slow, and lost when the service sleeps; mount a volume there: "+
		"volumes: [{name: data, persistent: {}}], volumeMounts: [{name: data, mountPath: %s}]",
		what, mostly, cmp.Or(folder, "FOLDER"))
}

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
		w.events.report(p.service.key, v1alpha1.EventProblem, status.SeverityWarning, p.layer.warning)
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
