// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// FixedSample is a run of ab against a fixed number of pods.
type FixedSample struct {
	Mode       string `json:"mode"`
	Repetition int    `json:"repetition"`
	Load
}

// fixed measures the same load in each mode, in turn.
func (m *scalingRun) fixed(ctx context.Context) error {
	if err := m.scaleAll(ctx, scalingReplicas); err != nil {
		return err
	}
	for i := range m.cfg.Repetitions {
		for _, mode := range m.nextTurn() {
			l, err := m.ab(ctx, mode, m.cfg.Requests, scalingConcurrency)
			if err != nil {
				return err
			}
			m.cfg.Log("fixed load, %d of %d: %s: %.2f s", i+1, m.cfg.Repetitions, mode, l.Seconds)
			m.raw.Fixed = append(m.raw.Fixed, FixedSample{mode, i, l})
		}
	}
	return nil
}

// ab is one run of ab in a mode from the clients' place.
func (m *scalingRun) ab(ctx context.Context, mode string, requests, concurrency int) (Load, error) {
	t, err := m.enter(ctx, mode, m.from)
	if err != nil {
		return Load{}, err
	}
	return abRequests(ctx, m.from.hosts[0], m.from.address(t), requests, concurrency, false)
}

// RateSample is what several clients at once came to in one repetition, in all of its parts.
type RateSample struct {
	rateOf
	Repetition int `json:"repetition"`
	Load
}

// rateOf is what a rate is of.
type rateOf struct {
	Mode      string `json:"mode"`
	Clients   string `json:"clients"` // a vantage
	KeepAlive bool   `json:"keep_alive"`
}

// A repetition of PartRates has several short parts of each mode in turn: what else the machine does changes from one ten
// seconds to the next, by more than the modes differ.
const (
	rateRepetitions = 5
	rateParts       = 3
	ratePart        = 2 * time.Second
)

// rateClients are the places of clients of PartRates.
var rateClients = []string{VantagePods, VantageLAN}

// rateSize is how many repetitions there are, of how many parts each, and how long one is.
func (c ScalingConfig) rateSize() (repetitions, parts int, length time.Duration) {
	if c.Quick {
		return 1, 1, time.Second
	}
	return rateRepetitions, rateParts, ratePart
}

// rateGroups are the modes that are measured beside one another: each mode of kube-proxy, which takes seconds to enter, with
// all that it does not matter for.
func rateGroups(modes []string) (groups [][]string) {
	beside := []string{ModeDirect}
	if slices.Contains(modes, ModeWangell) {
		beside = []string{ModeWangell, ModeDirect}
	}
	for _, mode := range modes {
		if mode != ModeWangell {
			groups = append(groups, append([]string{mode}, beside...))
		}
	}
	if groups == nil {
		groups = [][]string{beside}
	}
	return groups
}

// rates measures how many short connections, and how many requests on kept ones, each mode does in a second, from both
// places of clients. The limit is to connect to the pods themselves, each client to another.
func (m *scalingRun) rates(ctx context.Context) error {
	if err := m.scaleAll(ctx, scalingReplicas); err != nil {
		return err
	}
	repetitions, parts, length := m.cfg.rateSize()
	for i := range repetitions {
		loads := map[rateOf][]Load{}
		for _, group := range rateGroups(m.nextTurn()) {
			for part := range parts * len(group) {
				mode := group[(part+part/len(group))%len(group)] // each part begins with another
				for _, from := range []*vantage{m.pods, m.lan} {
					if err := m.rate(ctx, mode, from, length, loads); err != nil {
						return err
					}
				}
			}
		}
		for _, mode := range m.cfg.rateModes() {
			for _, clients := range rateClients {
				for _, keep := range []bool{false, true} {
					of := rateOf{mode, clients, keep}
					l := inSequence(loads[of])
					m.cfg.Log("rates, %d: %s from %s, kept %v: %.0f per second, %d failed", i+1, mode, clients, keep, l.PerSecond, l.Failed)
					m.raw.Rates = append(m.raw.Rates, RateSample{of, i, l})
				}
			}
		}
	}
	return nil
}

// rate adds a time of load of both kinds to what there is.
func (m *scalingRun) rate(ctx context.Context, mode string, from *vantage, length time.Duration, loads map[rateOf][]Load) error {
	t, err := m.enter(ctx, mode, from)
	if err != nil {
		return err
	}
	addresses := make([]string, len(from.hosts))
	for i := range addresses {
		addresses[i] = from.address(t)
	}
	if mode == ModeDirect {
		pods, err := t.pods(ctx)
		if err != nil {
			return err
		}
		for i := range addresses {
			ip, err := netip.ParseAddr(pods[i%len(pods)].Status.PodIP)
			if err != nil {
				return fmt.Errorf("pod %s: its address: %w", pods[i%len(pods)].Name, err)
			}
			addresses[i] = netip.AddrPortFrom(ip, helloPort).String()
		}
	}
	for _, keep := range []bool{false, true} {
		l, err := together(len(from.hosts), func(i int) (Load, error) {
			if keep {
				return wrkFor(ctx, from.hosts[i], addresses[i], length, scalingConcurrency/len(from.hosts))
			}
			return abFor(ctx, from.hosts[i], addresses[i], length, scalingConcurrency/len(from.hosts))
		})
		if err != nil {
			return err
		}
		of := rateOf{mode, from.name, keep}
		loads[of] = append(loads[of], l)
	}
	return nil
}

// ReplicaSample is a run of ab against some number of pods, or an autoscaled one.
type ReplicaSample struct {
	Mode string `json:"mode"`
	// Replicas is the number of pods; 0: autoscaled, 1 to 3.
	Replicas   int `json:"replicas"`
	Repetition int `json:"repetition"`
	Load
}

// setting names a number of pods.
func setting(replicas int) string {
	if replicas == 0 {
		return "1-3"
	}
	return strconv.Itoa(replicas)
}

// replicaSettings are the numbers of pods that are measured; 0 is autoscaled.
func (c ScalingConfig) replicaSettings() []int {
	if c.Quick {
		return []int{1, scalingMost, 0}
	}
	return []int{1, 2, 3, 4, 5, scalingMost, 0}
}

// replicas measures the same load against several numbers of pods, the modes in turn, and last against an autoscaled
// number, one mode after the other, as the number goes on from run to run.
func (m *scalingRun) replicas(ctx context.Context) error {
	add := func(mode string, replicas, repetition int) error {
		l, err := m.ab(ctx, mode, m.cfg.Requests, scalingConcurrency)
		if err != nil {
			return err
		}
		m.cfg.Log("%s replicas, %d of %d: %s: %.2f s", setting(replicas), repetition+1, m.cfg.Repetitions, mode, l.Seconds)
		m.raw.Replicas = append(m.raw.Replicas, ReplicaSample{mode, replicas, repetition, l})
		return nil
	}
	for _, n := range m.cfg.replicaSettings() {
		if n == 0 {
			for _, mode := range m.nextTurn() {
				_, err := m.autoscaled(ctx, mode, func(time.Time) error {
					for i := range m.cfg.Repetitions {
						if err := add(mode, 0, i); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			continue
		}
		if err := m.scaleAll(ctx, n); err != nil {
			return err
		}
		for i := range m.cfg.Repetitions {
			for _, mode := range m.nextTurn() {
				if err := add(mode, n, i); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// autoscaled calls f while the target of a mode is autoscaled, from one pod on.
func (m *scalingRun) autoscaled(ctx context.Context, mode string, f func(begin time.Time) error) ([]Step, error) {
	t, err := m.enter(ctx, mode, m.from)
	if err != nil {
		return nil, err
	}
	if err := t.scaleTo(ctx, 1); err != nil {
		return nil, err
	}
	a := &autoscaler{target: t, policy: cpuPolicy(scalingTarget, m.cfg.Interval), interval: m.cfg.Interval, begin: time.Now()}
	stop := a.start(ctx, 1)
	err = f(a.begin)
	steps, stopErr := stop()
	if err == nil {
		err = stopErr
	}
	return steps, err
}

// AlternatingMode is a mode under a load that changes, autoscaled.
type AlternatingMode struct {
	Mode  string           `json:"mode"`
	Runs  []AlternatingRun `json:"runs"`
	Steps []Step           `json:"steps"`
}

// AlternatingRun is a run of ab among them.
type AlternatingRun struct {
	// At is when it began, in seconds since the begin.
	At          float64 `json:"at_s"`
	End         float64 `json:"end_s"`
	Concurrency int     `json:"concurrency"`
	Load
}

// alternatingRequests is how many requests make much load: even a quick run lasts longer than the autoscaler's interval.
func (c ScalingConfig) alternatingRequests() int {
	if c.Quick {
		return 4 * c.Requests
	}
	return c.Requests
}

// alternating has much load and little load follow each other while the number of pods follows the load.
func (m *scalingRun) alternating(ctx context.Context) error {
	for _, mode := range m.nextTurn() {
		result := AlternatingMode{Mode: mode}
		t := m.of(mode)
		steps, err := m.autoscaled(ctx, mode, func(begin time.Time) error {
			for i := range 2 * m.cfg.Repetitions {
				requests, concurrency := m.cfg.alternatingRequests(), scalingConcurrency
				if i%2 == 1 {
					requests, concurrency = requests/serialShare, 1
				}
				run := AlternatingRun{At: time.Since(begin).Seconds(), Concurrency: concurrency}
				var err error
				if run.Load, err = abRequests(ctx, m.from.hosts[0], m.from.address(t), requests, concurrency, false); err != nil {
					return err
				}
				run.End = time.Since(begin).Seconds()
				m.cfg.Log("alternating load, %d of %d: %s: %.2f s, %d failed %s", i+1, 2*m.cfg.Repetitions, mode, run.End-run.At, run.Failed, run.Aborted)
				result.Runs = append(result.Runs, run)
			}
			return nil
		})
		if err != nil {
			return err
		}
		result.Steps = steps
		m.raw.Alternating = append(m.raw.Alternating, result)
	}
	slices.SortFunc(m.raw.Alternating, func(a, b AlternatingMode) int {
		return slices.Index(m.cfg.Modes, a.Mode) - slices.Index(m.cfg.Modes, b.Mode)
	})
	return nil
}
