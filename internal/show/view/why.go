// SPDX-License-Identifier: Apache-2.0

package view

import (
	"math"
	"strings"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/decide/rollout"
	"wangell.loutres.me/internal/decide/scale"
	"wangell.loutres.me/internal/status"
)

// Why explains the state of a service in sentences, each with the deciding number. wakes are the most recent wakes of
// the service, oldest first.
func Why(s status.Status, wakes []lifecycle.Waterfall, now time.Time) []string {
	w := why{Status: s, now: now}
	for _, c := range troubles(s) {
		w.say("Condition %s is %s (%s): %s.", c.Type, c.Status, c.Reason, c.Message)
	}
	if s.Service.Spec.SplitsTraffic() {
		w.say("It has no pods of its own: its requests go to its revisions, %s.", rollout.Describe(s.Service.Spec.Traffic))
		w.say("Each of them wakes, scales and sleeps on its own: ask why of one of them.")
		return w.sentences
	}
	switch s.Service.Status.State {
	case lifecycle.Cold.String():
		w.cold(wakes)
	case lifecycle.Waking.String():
		w.waking(wakes)
	case lifecycle.Warm.String():
		w.warm()
	case lifecycle.Frozen.String():
		w.frozen()
	case lifecycle.Stopping.String():
		w.say("It goes to sleep: its pods get no new connections and are being stopped. A client that connects now is " +
			"served by one of them, or wakes it again.")
	case lifecycle.Failed.String():
		w.failed(wakes)
	default:
		w.say("Its state is not known yet.")
	}
	if r := s.Reservations; r.CPU > 0 || r.Memory > 0 {
		w.say("While frozen, it leaves the scheduler %.4g cores and %s of what it requests.", r.CPU,
			text.Bytes(int64(r.Memory)))
	}
	for _, text := range []string{s.Reservations.Short, s.Reservations.Kept} {
		if text != "" {
			w.say("%s.", strings.ToUpper(text[:1])+text[1:])
		}
	}
	w.outlook()
	if m := s.Pressure.Message; m != "" && m != s.Service.Status.Message {
		w.say("Scarce: %s.", m)
	}
	if m := s.Service.Status.Message; m != "" && s.Service.Status.State != lifecycle.Failed.String() {
		w.say("%s.", m)
	}
	return w.sentences
}

// WantsOutput reports whether what a service's program has written may say why it does not serve: it wakes, or its last
// wake has failed.
func WantsOutput(s status.Status, wakes []lifecycle.Waterfall) bool {
	switch s.Service.Status.State {
	case lifecycle.Failed.String(), lifecycle.Waking.String():
		return true
	case lifecycle.Cold.String():
		return len(wakes) > 0 && wakes[len(wakes)-1].Result == lifecycle.ResultFailed
	}
	return false
}

func (w *why) cold(wakes []lifecycle.Waterfall) {
	w.say("It is asleep: it has no pod.")
	if last := latest(w.Status); last.IsZero() {
		w.unused()
	} else {
		w.say("Its last packet came %s ago, and idleTimeout is %s.", short(w.now.Sub(last)), short(w.idle()))
	}
	w.say("The first connection to %s wakes it.", Address(w.Status))
	if len(wakes) == 0 {
		return
	}
	switch last := wakes[len(wakes)-1]; last.Result {
	case lifecycle.ResultWarm:
		at, _ := last.At(lifecycle.PhaseListening)
		w.say("Its last wake took %s until the pod listened.", short(at))
	case lifecycle.ResultFailed, lifecycle.ResultCancelled:
		w.say("Its last wake was %s: %s.", last.Result, last.Reason)
	}
}

// unused says since when no client is known.
func (w *why) unused() {
	if w.HistorySince.IsZero() {
		w.say("No client has used it since this instance started.")
		return
	}
	w.say("No client is known since %s, when this controller began to lead.", clock(w.HistorySince, w.now))
}

func (w *why) waking(wakes []lifecycle.Waterfall) {
	if len(wakes) == 0 || wakes[len(wakes)-1].Result != lifecycle.ResultRunning {
		w.say("It wakes: its first pod is being started.")
		return
	}
	wake := wakes[len(wakes)-1]
	w.say("It has been waking for %s, and fails after a wakeTimeout of %s.", short(w.now.Sub(wake.Start)),
		short(time.Duration(w.Service.Spec.WakeTimeout)*time.Second))
	if n := len(wake.Phases); n > 0 {
		last := wake.Phases[n-1]
		w.say("The last phase that ended is %q, %s after the first connection request.", last.Name, short(last.At))
	}
	w.say("Parked connection requests: %d.", wake.Parked)
}

func (w *why) warm() {
	spec := &w.Service.Spec
	w.say("It is awake: %d of %d pods serve, with %d open connections.", w.Serving, w.Desired, w.Traffic.OpenFlows)
	for _, p := range w.Pods {
		if p.State != lifecycle.PodServing.String() {
			w.say("Pod %s is %s, with %d open connections.", p.ID, p.State, p.Traffic.OpenFlows)
		}
	}
	if w.NotFrozen != "" {
		w.say("It is not frozen: %s.", w.NotFrozen)
	}
	w.scaling()
	last := latest(w.Status)
	left := w.idle() - w.now.Sub(last)
	switch least := spec.MinReplicas; {
	case least > 0:
		w.say("minReplicas is %d: it never sleeps.", least)
	case w.Outlook != nil && w.Outlook.Wanted != "": // outlook says more
	case last.IsZero():
		w.say("No client has used it yet: it sleeps after an idleTimeout of %s without a packet.", short(w.idle()))
	case w.Outlook != nil && w.Outlook.Basis != "": // it counts as idle sooner
		w.say("Its last packet came %s ago: it goes to sleep after a minute without another one.", short(w.now.Sub(last)))
	case left > 0:
		w.say("Its last packet came %s ago: without another one it sleeps in %s, as idleTimeout is %s.",
			short(w.now.Sub(last)), short(left), short(w.idle()))
	default:
		w.say("Its last packet came %s ago, longer than the idleTimeout of %s: it goes to sleep once all its nodes have "+
			"reported it idle.", short(w.now.Sub(last)), short(w.idle()))
	}
}

// frozen explains a service whose pods are frozen.
func (w *why) frozen() {
	there := "its pods are there"
	if len(w.Pods) == 1 {
		there = "its pod is there"
	}
	w.say("It is frozen: %s with all processes and connections, and uses no CPU. %s.", there,
		counted(int(w.Traffic.OpenFlows), "open connection"))
	for _, p := range w.Pods {
		f := p.Frozen
		if f == nil {
			continue
		}
		if f.ResidentBytes+f.SwappedBytes > 0 {
			w.say("Pod %s has been frozen for %s, with %s in RAM and %s in swap.", p.ID, short(w.now.Sub(f.Since)),
				text.Bytes(int64(f.ResidentBytes)), text.Bytes(int64(f.SwappedBytes)))
		} else {
			w.say("Pod %s has been frozen for %s.", p.ID, short(w.now.Sub(f.Since)))
		}
		if f.Reason != "" {
			w.say("%s.", f.Reason)
		}
	}
	w.say("The next packet to %s that its program has to answer lets it run on.", Address(w.Status))
	last := latest(w.Status)
	switch {
	case w.Service.Spec.MinReplicas > 0:
		w.say("minReplicas is %d: it is never stopped.", w.Service.Spec.MinReplicas)
	case w.Outlook != nil && w.Outlook.Wanted != "": // outlook says more
	case w.Outlook != nil && w.Outlook.Basis != "": // it counts as idle sooner
		w.say("Its last packet came %s ago: it is stopped after a minute without another one.", short(w.now.Sub(last)))
	default:
		w.say("Without one it is stopped in %s, as stopAfter is %s.", short(w.idle()-w.now.Sub(last)), short(w.idle()))
	}
}

// scaling explains the number of pods of a service that follows its load.
func (w *why) scaling() {
	spec := &w.Service.Spec
	s := spec.Scaling
	if s == nil {
		return
	}
	if s.Metric != v1alpha1.MetricConnections {
		w.say("The number of pods follows the metric %s, with a target of %d for each pod: from %d to %d pods.", s.Metric,
			s.Target, max(spec.MinReplicas, 1), spec.MaxReplicas)
		return
	}
	open, least := float64(w.Traffic.OpenFlows), max(int(spec.MinReplicas), 1)
	wanted := int(math.Ceil(open / float64(s.Target)))
	w.say("Its load of %s needs %s, at a target of %d for each.", counted(int(w.Traffic.OpenFlows), "open connection"),
		counted(wanted, "pod"), s.Target)
	switch {
	case wanted > int(spec.MaxReplicas):
		w.say("maxReplicas is %d: it gets no more.", spec.MaxReplicas)
	case w.Desired <= max(wanted, least):
		if wanted < least {
			w.say("It keeps %d, its minimum while it is awake.", least)
		}
	case open >= float64(w.Desired)*float64(s.Target)*(1-scale.Tolerance):
		w.say("It keeps %d, as each is within %.0f %% of the target.", w.Desired, scale.Tolerance*100)
	case s.InStabilization != nil:
		w.say("It has %d: they become fewer once fewer have sufficed for %s (inStabilization).", w.Desired,
			short(time.Duration(*s.InStabilization)*time.Second))
	}
}

func (w *why) failed(wakes []lifecycle.Waterfall) {
	w.say("Its last wake failed: %s.", w.Service.Status.Message)
	if n := len(wakes); n > 0 {
		w.say("That was %s ago. Clients that waited were refused; the next connection to %s tries again.",
			short(w.now.Sub(wakes[n-1].Start)), Address(w.Status))
	}
}
