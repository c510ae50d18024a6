// SPDX-License-Identifier: Apache-2.0

// Package scale decides how many pods a service has. Its functions are pure: observations and times are parameters. It
// depends on neither Kubernetes nor the gate.
//
// The rule is the one of the horizontal pod autoscaler of Kubernetes
// (https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/#algorithm-details): replicas =
// ceil(current × value / target), with a tolerance, bounds, stabilization windows and a limit of the step size, the
// last two for each direction. Scaling to zero and from zero is not decided here, but by idleness and by the first SYN.
package scale

import (
	"fmt"
	"math"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// Tolerance is the deviation of value / target from 1 that causes no change.
const Tolerance = 0.1

// Direction holds the rules for scaling out or in.
type Direction struct {
	// Interval is the minimum time before a change in this direction, after any change.
	Interval time.Duration
	// Window is the stabilization window. Of the recommendations within it, the most careful one counts: the smallest
	// number for out, the largest for in. With zero, only the current recommendation counts.
	Window time.Duration
	// MaxStep is the maximum number of pods in one change; zero for no maximum.
	MaxStep int
}

// Policy describes how a service is scaled.
type Policy struct {
	// Metric is the name of the value, for messages only, such as "connections".
	Metric string
	// Target is the desired value for each pod, above zero.
	Target float64
	// Min and Max bound the pods of a service that is awake; 1 ≤ Min ≤ Max.
	Min, Max int
	// Out and In are the rules for each direction.
	Out, In Direction
}

// Check returns what is wrong with a policy.
func (p Policy) Check() error {
	switch {
	case !(p.Target > 0) || math.IsInf(p.Target, 0):
		return fmt.Errorf("target %v: must be above zero", p.Target)
	case p.Min < 1 || p.Max < p.Min:
		return fmt.Errorf("%d to %d replicas: the minimum must be at least 1 and not above the maximum", p.Min, p.Max)
	case p.Out.negative() || p.In.negative():
		return fmt.Errorf("intervals, windows and steps must not be negative")
	}
	return nil
}

func (d Direction) negative() bool { return d.Interval < 0 || d.Window < 0 || d.MaxStep < 0 }

// Observation is the state of a service at a time.
type Observation struct {
	At monotime.Time
	// Replicas is the number of pods that the service should have now, at least 1.
	Replicas int
	// Value is the metric for each pod, in the unit of the target: the sum over all serving pods, divided by their
	// number. NaN means that it is not known, and causes no change.
	Value float64
}

// Decision is the number of pods that a service should have, with the reason.
type Decision struct {
	// Replicas is the number from now on.
	Replicas int
	// Wanted is the result of the formula alone.
	Wanted int
	// Limit names the reason why Replicas differs from Wanted: "", "tolerance", "minReplicas", "maxReplicas", "step",
	// "interval", "window" or "no value".
	Limit string
	// Value and Target are the basis of the decision.
	Value, Target float64
	metric        string
}

// String returns the reason in one line, for status and events.
func (d Decision) String() string {
	s := fmt.Sprintf("%s %.4g for each pod, target %.4g: wants %d", d.metric, d.Value, d.Target, d.Wanted)
	if d.Limit != "" {
		s += fmt.Sprintf(", %d because of %s", d.Replicas, d.Limit)
	}
	return s
}

// recommendation is the number of pods recommended at a time.
type recommendation struct {
	at       monotime.Time
	replicas int
}

// maxHistory bounds the history of a Scaler. If there are more observations within a window, the window is shorter.
const maxHistory = 1024

// Scaler decides for one service. The zero value has no history. It is not safe for concurrent use.
type Scaler struct {
	history []recommendation
	changed monotime.Time // time of the last change
	scaled  bool
}

// Decide decides on an observation. Observations must come in the order of their times. With a policy that Check
// refuses, nothing changes.
func (s *Scaler) Decide(p Policy, o Observation) Decision {
	d := Decision{Replicas: o.Replicas, Wanted: o.Replicas, Value: o.Value, Target: p.Target, metric: p.Metric}
	if p.Check() != nil || math.IsNaN(o.Value) || o.Value < 0 || o.Replicas < 1 {
		d.Limit = "no value"
		return d
	}
	d.Wanted = want(p, o)
	ratio := o.Value / p.Target
	bounded := min(max(d.Wanted, p.Min), p.Max)
	switch {
	case math.Abs(ratio-1) <= Tolerance+1e-9 && o.Replicas >= p.Min && o.Replicas <= p.Max:
		bounded = o.Replicas
		if d.Wanted != bounded {
			d.Limit = "tolerance"
		}
	case bounded < d.Wanted:
		d.Limit = "maxReplicas"
	case bounded > d.Wanted:
		d.Limit = "minReplicas"
	}
	s.remember(recommendation{o.At, bounded}, max(p.Out.Window, p.In.Window))
	next := s.stable(p, o, bounded)
	if next != bounded {
		d.Limit = "window"
	}
	next, limit := paced(p, o, next, s.scaled, s.changed)
	if limit != "" {
		d.Limit = limit
	}
	// Bounds are not recommendations: they apply at once, whatever the pace.
	next = min(max(next, p.Min), p.Max)
	if next != o.Replicas {
		s.changed, s.scaled = o.At, true
	}
	d.Replicas = next
	return d
}

// want is the formula alone.
func want(p Policy, o Observation) int {
	n := math.Ceil(float64(o.Replicas)*o.Value/p.Target - 1e-9) // 3 × 0.1 / 0.3 is one pod, not two
	return int(min(n, math.MaxInt32))
}

// remember adds a recommendation, and drops those that no window needs.
func (s *Scaler) remember(r recommendation, window time.Duration) {
	keep := 0
	for keep < len(s.history) && r.at.Sub(s.history[keep].at) > window {
		keep++
	}
	if len(s.history)-keep >= maxHistory {
		keep = len(s.history) - maxHistory + 1
	}
	s.history = append(s.history[:0], s.history[keep:]...)
	s.history = append(s.history, r)
}

// stable returns the most careful recommendation within the windows. now is the current one.
func (s *Scaler) stable(p Policy, o Observation, now int) int {
	least, most := now, now // of the recommendations within the windows of out and in
	for _, r := range s.history {
		age := o.At.Sub(r.at)
		if age <= p.Out.Window {
			least = min(least, r.replicas)
		}
		if age <= p.In.Window {
			most = max(most, r.replicas)
		}
	}
	switch {
	case least > o.Replicas:
		return least
	case most < o.Replicas:
		return most
	}
	return o.Replicas
}

// paced limits a change by interval and step. limit names what it was limited by.
func paced(p Policy, o Observation, next int, scaled bool, changed monotime.Time) (int, string) {
	rule := p.Out
	if next < o.Replicas {
		rule = p.In
	}
	step := next - o.Replicas
	switch {
	case step == 0:
		return next, ""
	case scaled && o.At.Sub(changed) < rule.Interval:
		return o.Replicas, "interval"
	case rule.MaxStep > 0 && step > rule.MaxStep:
		return o.Replicas + rule.MaxStep, "step"
	case rule.MaxStep > 0 && -step > rule.MaxStep:
		return o.Replicas - rule.MaxStep, "step"
	}
	return next, ""
}
