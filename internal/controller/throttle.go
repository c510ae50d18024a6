// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

const (
	// throttleEvery is the pause between two looks at how often pods are throttled.
	throttleEvery = 10 * time.Second
	// A container that was throttled in throttleShare of its periods is reported, if there were at least throttlePeriods
	// of them (10 s of work) since the last judgement. Single periods are the bursts that a limit is meant to cut.
	throttleShare   = 0.25
	throttlePeriods = 100
)

// throttle is how the CPU limits of a pod have slowed its containers down.
type throttle struct {
	containers []runtime.ContainerUsage // of the last look, those with a limit
	judged     map[string]runtime.Usage // what each had when it was last judged
	warning    string                   // empty if there is nothing to warn of
}

// note records a look, and reports whether the warning has changed. A warning stays until its container is judged again
// and is throttled less.
func (t *throttle) note(containers []runtime.ContainerUsage) bool {
	t.containers = nil
	before, warning, judged := t.warning, "", false
	for _, c := range containers {
		if c.Periods == 0 {
			continue
		}
		t.containers = append(t.containers, c)
		last, known := t.judged[c.Name]
		if !known || c.Periods < last.Periods { // it was started again
			t.judge(c)
			continue
		}
		periods := c.Periods - last.Periods
		if periods < throttlePeriods {
			continue
		}
		judged = true
		t.judge(c)
		if share := float64(c.Throttled-last.Throttled) / float64(periods); share >= throttleShare && warning == "" {
			warning = throttleWarning(c.Name, share, c.ThrottledTime-last.ThrottledTime, c.At.Sub(last.At))
		}
	}
	if !judged {
		return false
	}
	// A warning keeps its first figures: an event for each look would help nobody.
	switch {
	case warning == "":
		t.warning = ""
	case before == "":
		t.warning = warning
	}
	return t.warning != before
}

func (t *throttle) judge(c runtime.ContainerUsage) {
	if t.judged == nil {
		t.judged = map[string]runtime.Usage{}
	}
	t.judged[c.Name] = c.Usage
}

// throttleWarning returns the warning for a container, with what to change.
func throttleWarning(container string, share float64, paused, span time.Duration) string {
	return fmt.Sprintf("container %s had used up its CPU limit in %.0f %% of the periods of the last %s, in which its "+
		"tasks waited for %s together: raise resources.limits.cpu, or run fewer workers",
		container, 100*share, span.Round(time.Second), paused.Round(time.Millisecond))
}

// throttleWatch looks at how often the CPU limits of running pods slow them down.
type throttleWatch struct {
	loop    *loop
	workers *workers
	table   *table
	events  *hub
	changed *changedSet
	meter   runtime.Meter
}

// run looks at running pods with a CPU limit until the workers stop.
func (w *throttleWatch) run() {
	tick := time.NewTicker(throttleEvery)
	defer tick.Stop()
	for {
		select {
		case <-w.workers.ctx.Done():
			return
		case <-tick.C:
		}
		var pods map[string]string
		w.loop.call(func() { pods = w.table.serving(canBeThrottled) })
		for id, name := range pods {
			used, err := w.meter.Usage(w.workers.ctx, id)
			if err != nil {
				continue // it has ended
			}
			w.loop.post(func() { w.note(id, used.ByContainer(name)) })
		}
	}
}

// canBeThrottled reports whether a pod runs and has a CPU limit.
func canBeThrottled(p *pod) bool { return p.still.report == nil && limitsCPU(p.service.spec) }

// limitsCPU reports whether one of the containers of a service has a CPU limit.
func limitsCPU(s *v1alpha1.WangellService) bool {
	return slices.ContainsFunc(containerResources(&s.Spec), func(r corev1.ResourceRequirements) bool {
		q, limited := r.Limits[corev1.ResourceCPU]
		return limited && !q.IsZero()
	})
}

// note records how the containers of a pod were throttled.
func (w *throttleWatch) note(id string, containers []runtime.ContainerUsage) {
	p := w.table.byRuntime[id]
	if p == nil || !p.throttle.note(containers) {
		return
	}
	if p.throttle.warning != "" {
		w.events.report(p.service.key, v1alpha1.EventProblem, status.SeverityWarning, p.throttle.warning)
	}
	w.changed.check(p.service)
}
