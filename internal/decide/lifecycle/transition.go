// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

// transition is one step of a machine: it collects the decisions, and puts them in order at the end.
type transition struct {
	*Machine
	now     monotime.Time
	starts  []StartPod
	publish bool // even if nothing has changed
	refuse  string
	stops   []StopPod
	// refusePorts are ports whose clients are refused while others are served, and the reason.
	refusePorts    PortSet
	refusePortsWhy string
	freezeNow      *FreezePods
	record         bool     // the timeline has news
	records        []Record // of timelines that were replaced
	reports        []Report
}

// startPod starts a pod that has to listen by a deadline.
func (t *transition) startPod(deadline monotime.Time) *pod {
	p := t.newPod()
	p.deadline = deadline
	t.starts = append(t.starts, StartPod{p.ref})
	return p
}

// stop stops a pod, unless it was stopped already.
func (t *transition) stop(p *pod, grace time.Duration) {
	p.deadline = 0
	if !p.stopped() {
		p.life = lifeStopping
		t.stops = append(t.stops, StopPod{p.ref, grace})
	}
}

// stopStarting stops the pods that do not serve yet.
func (t *transition) stopStarting() {
	for _, p := range t.pods {
		if p.starting() {
			t.stop(p, p.grace)
		}
	}
}

// drain ends new flows for a pod, and bounds the time until it is stopped.
func (t *transition) drain(p *pod, wait time.Duration) {
	p.life, p.drainGen, p.deadline = lifeDraining, t.published.generation+1, t.now.Add(wait)
	t.publish = t.publish || p.progress >= podListened // it may have been published as draining before
}

// report adds a message for users.
func (t *transition) report(reason v1alpha1.EventReason, s Severity, format string, args ...any) {
	t.reports = append(t.reports, Report{reason, s, fmt.Sprintf(format, args...)})
}

// note tells what happened, which is worth no Event.
func (t *transition) note(format string, args ...any) { t.report("", Info, format, args...) }

// mark records when a phase of a pod ended, also in the timeline if that follows the pod.
func (t *transition) mark(r Ref, name PhaseName, at monotime.Time) {
	p, i := t.pod(r), phaseIndex(name)
	if p != nil && i >= 0 && p.phases[i] == 0 {
		p.phases[i] = at
	}
	if t.timeline != nil && t.timeline.ref == r && t.timeline.mark(name, at) {
		t.record = true
	}
}

// conclude records how the wake in progress ended, if there is one.
func (t *transition) conclude(r Result, reason string) {
	if t.timeline != nil && t.timeline.result == ResultRunning {
		t.timeline.result, t.timeline.reason, t.record = r, reason, true
	}
}

// forget makes the timeline follow another starting pod if it follows this one, which is lost.
func (t *transition) forget(p *pod) {
	l := t.timeline
	if l == nil || l.ref != p.ref || l.result != ResultRunning {
		return
	}
	l.ref = 0
	for _, q := range t.pods {
		if q.starts() {
			l.follow(q)
			return
		}
	}
}

// endTimeline closes the timeline of a wake that is over.
func (t *transition) endTimeline() {
	t.flush(nil)
	t.timeline = nil
}

// flush records the news of the timeline and continues with the next one, if given. A failed wake has no further
// news.
func (t *transition) flush(next *timeline) {
	if t.record && t.timeline != nil {
		t.records = append(t.records, t.timeline.record(t.spec.Name))
	}
	t.record = false
	if next != nil || t.state == Cold || t.state == Failed {
		t.timeline = next
	}
}

// actions puts the decisions in the order of Action.
func (t *transition) actions() []Action {
	var out []Action
	for _, s := range t.starts {
		out = append(out, s)
	}
	pods, sharing, last := t.backends(), t.sharing(), &t.published
	if t.publish || !slices.Equal(pods, last.pods) || sharing != last.sharing && len(pods) > 0 {
		*last = published{last.generation + 1, pods, sharing}
		out = append(out, PublishBackends{Generation: last.generation, Pods: slices.Clone(pods), Sharing: sharing})
	}
	if t.refuse != "" {
		t.ports.asked = 0
		out = append(out, RefuseParked{Reason: t.refuse})
	} else if t.refusePorts != 0 {
		out = append(out, RefuseParked{Reason: t.refusePortsWhy, Ports: t.refusePorts})
	}
	for _, s := range t.stops {
		out = append(out, s)
	}
	if t.freezeNow != nil {
		out = append(out, *t.freezeNow)
	}
	if at := t.nextDeadline(t.now); at != t.armed {
		t.armed = at
		out = append(out, ArmTimer{at})
	}
	t.flush(nil)
	for _, r := range t.records {
		out = append(out, r)
	}
	for _, r := range t.reports {
		out = append(out, r)
	}
	return out
}
