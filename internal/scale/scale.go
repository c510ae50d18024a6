// SPDX-License-Identifier: Apache-2.0

// Package scale decides how many pods a service has: pure functions of what was observed, with time as a parameter. It
// knows neither Kubernetes nor the gate; it does nothing itself.
//
// The rule is that of Kubernetes' horizontal pod autoscaler
// (https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/#algorithm-details): replicas =
// ceil(current × value / target), nothing within a tolerance, bounds, stabilisation windows and a limit on step size,
// each for out and in by itself. Going to zero and coming from zero is not decided here, but by idleness and by the
// first SYN.
package scale

import (
	"fmt"
	"math"
	"time"

	"wangell.loutres.me/internal/monotime"
)

// Tolerance is how far value / target may be from 1 without a change.
const Tolerance = 0.1

// Direction is what differs between scaling out and in.
type Direction struct {
	// Interval is the least time between two changes in this direction, and after a change in the other one.
	Interval time.Duration
	// Window is the stabilisation window: of what was recommended in it, the most careful counts. That is the
	// smallest number for out, and the largest for in. Zero: only the present recommendation counts.
	Window time.Duration
	// MaxStep is by how many pods one change may go; zero: by any number.
	MaxStep int
}

// Policy is what a user wants.
type Policy struct {
	// Metric names what is observed, for reasons only: "connections", "rate", "cpu" or "memory".
	Metric string
	// Target is the value for each pod that is aimed at, above zero.
	Target float64
	// Min and Max bound the pods of a service that is awake; 1 ≤ Min ≤ Max.
	Min, Max int
	// Out and In are the rules of either direction.
	Out, In Direction
}

// Check tells what is wrong with a policy.
func (p Policy) Check() error {
	switch {
	case !(p.Target > 0) || math.IsInf(p.Target, 0):
		return fmt.Errorf("target %v: must be above zero", p.Target)
	case p.Min < 1 || p.Max < p.Min:
		return fmt.Errorf("%d to %d replicas: the least must be at least 1 and not above the most", p.Min, p.Max)
	case p.Out.Interval < 0 || p.In.Interval < 0 || p.Out.Window < 0 || p.In.Window < 0 || p.Out.MaxStep < 0 || p.In.MaxStep < 0:
		return fmt.Errorf("intervals, windows and steps must not be negative")
	}
	return nil
}

// Observation is what was seen of a service at a time.
type Observation struct {
	At monotime.Time
	// Replicas is how many pods are wanted at present, at least 1.
	Replicas int
	// Value is the metric for each pod, in the unit of the target: its sum over all pods that serve, divided by
	// their number. NaN: not known; nothing is changed then.
	Value float64
}

// Decision is how many pods there should be, and why.
type Decision struct {
	// Replicas is the number to have from now on.
	Replicas int
	// Wanted is what the formula alone gives.
	Wanted int
	// Limit names what holds Replicas back from Wanted: "", "tolerance", "minReplicas", "maxReplicas", "step",
	// "interval", "window" or "no value".
	Limit string
	// Value and Target are those that it was decided by.
	Value, Target float64
	metric        string
}

// String tells the reason in one line, for status and events.
func (d Decision) String() string {
	s := fmt.Sprintf("%s %.4g for each pod, target %.4g: wants %d", d.metric, d.Value, d.Target, d.Wanted)
	if d.Limit != "" {
		s += fmt.Sprintf(", %d because of %s", d.Replicas, d.Limit)
	}
	return s
}

// recommendation is what a moment asked for.
type recommendation struct {
	at       monotime.Time
	replicas int
}

// maxHistory bounds what a scaler remembers. With more observations in a window than that, the window is shorter.
const maxHistory = 1024

// Scaler decides for one service. The zero value has no history. It is not safe for use by several goroutines at once.
type Scaler struct {
	history []recommendation
	changed monotime.Time // when Replicas last differed from what it was; zero: never
	scaled  bool
}

// Decide takes an observation and decides. Observations must come in the order of their times. A policy that Check
// refuses keeps what there is.
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
	// Bounds hold at once, whatever the pace: they are orders, not recommendations.
	next = min(max(next, p.Min), p.Max)
	if next != o.Replicas {
		s.changed, s.scaled = o.At, true
	}
	d.Replicas = next
	return d
}

// want is the formula.
func want(p Policy, o Observation) int {
	n := math.Ceil(float64(o.Replicas)*o.Value/p.Target - 1e-9) // 3 × 0.1 / 0.3 is one pod, not two
	return int(min(n, math.MaxInt32))
}

// remember keeps a recommendation as long as a window needs it.
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

// stable is the most careful of what was recommended in the windows.
func (s *Scaler) stable(p Policy, o Observation, now int) int {
	least, most := now, now // of what was asked for in the window of out, and of in
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

// paced holds a change back by interval and step.
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
