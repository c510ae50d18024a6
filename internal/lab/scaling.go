// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Parts of the experiment Scaling.
const (
	PartFixed       = "fixed"
	PartReplicas    = "replicas"
	PartAlternating = "alternating"
	PartRates       = "rates"
	PartFlap        = "flap"
)

// ScalingParts are all parts, in the order in which they are done.
var ScalingParts = []string{PartFixed, PartRates, PartReplicas, PartAlternating, PartFlap}

// ScalingModes are the modes that are compared.
var ScalingModes = []string{ModeIptables, ModeNftables, ModeWangell}

// ScalingConfig configures Scaling.
type ScalingConfig struct {
	// Cluster is the file cluster.json of a cluster that test/cluster has started, Wangell's chart installed unless Modes
	// leaves it out.
	Cluster string
	// Quick makes everything small: to see that it works, not to trust the numbers.
	Quick bool
	// Modes are those of ScalingModes that are measured, Parts those of ScalingParts. Default: all.
	Modes, Parts []string
	// Cases are the keys of those of FlapCases that PartFlap measures. Default: all, or three if Quick.
	Cases []string
	// Clients is where clients of most parts are: VantagePods (default) or VantageLAN. Rates has both.
	Clients string
	// Requests is how many a run of ab makes, Repetitions how often each is repeated. Default: 500,000 and 10, or 4,000 and
	// 2 if Quick.
	Requests, Repetitions int
	// Interval is that of the autoscaler. Default: 10 s, or 1 s if Quick.
	Interval time.Duration
	// FlapTime is how long each disturbance of PartFlap goes on. Default: 1 min, or 4 s if Quick.
	FlapTime time.Duration
	// Log is told what is done; it may be nil.
	Log func(format string, args ...any)
}

const (
	scalingConcurrency = 100  // connections at a time of ab
	scalingTarget      = 0.25 // cores for each pod
	scalingReplicas    = 3    // with a fixed load
	scalingMost        = 6    // replicas of PartReplicas
	// serialShare is how many of a run's requests the run with one connection at a time makes.
	serialShare = 5
	rateHosts   = 3 // clients of PartRates, one for each pod
)

// ScalingRaw has all samples.
type ScalingRaw struct {
	Fixed       []FixedSample     `json:"fixed,omitempty"`
	Rates       []RateSample      `json:"rates,omitempty"`
	Replicas    []ReplicaSample   `json:"replicas,omitempty"`
	Alternating []AlternatingMode `json:"alternating,omitempty"`
	Flap        []FlapSample      `json:"flap,omitempty"`
}

func (c ScalingConfig) withDefaults() (ScalingConfig, error) {
	def := func(v *int, full, quick int) {
		if *v == 0 && c.Quick {
			*v = quick
		} else if *v == 0 {
			*v = full
		}
	}
	span := func(v *time.Duration, full, quick time.Duration) {
		if *v == 0 && c.Quick {
			*v = quick
		} else if *v == 0 {
			*v = full
		}
	}
	if c.Cluster == "" {
		return c, errors.New("lab scaling: no cluster: give the cluster.json of one that test/cluster has started")
	}
	if c.Requests < 0 || c.Repetitions < 0 || c.Interval < 0 || c.FlapTime < 0 {
		return c, errors.New("lab scaling: a number is below zero")
	}
	def(&c.Requests, 500_000, 4_000)
	def(&c.Repetitions, 10, 2)
	span(&c.Interval, 10*time.Second, time.Second)
	span(&c.FlapTime, time.Minute, 4*time.Second)
	if len(c.Cases) == 0 && c.Quick {
		c.Cases = []string{"scale_ab", "scale_wrk", "delete_ab"}
	} else if len(c.Cases) == 0 {
		c.Cases = FlapCaseKeys()
	}
	if c.Clients == "" {
		c.Clients = VantagePods
	}
	if len(c.Modes) == 0 {
		c.Modes = ScalingModes
	}
	if len(c.Parts) == 0 {
		c.Parts = ScalingParts
	}
	for _, check := range []struct {
		what       string
		got, known []string
	}{{"mode", c.Modes, ScalingModes}, {"part", c.Parts, ScalingParts}, {"case", c.Cases, FlapCaseKeys()},
		{"place for clients", []string{c.Clients}, []string{VantagePods, VantageLAN}}} {
		for _, s := range check.got {
			if !slices.Contains(check.known, s) {
				return c, fmt.Errorf("lab scaling: no %s %q: there are %s", check.what, s, strings.Join(check.known, ", "))
			}
		}
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	return c, nil
}

// Scaling measures kube-proxy in both of its modes and Wangell side by side on a cluster of several nodes. The first
// report has the whole summary, and a plot of the fixed load; each further one has the plot of another part.
func Scaling(ctx context.Context, cfg ScalingConfig) (_ []*Report, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	load := loadAverage()
	m, err := newScalingRun(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("lab scaling: %w", err)
	}
	defer func() {
		if closeErr := m.close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("lab scaling: clean up: %w", closeErr))
		}
	}()
	parts := map[string]func(context.Context) error{PartFixed: m.fixed, PartRates: m.rates, PartReplicas: m.replicas,
		PartAlternating: m.alternating, PartFlap: m.flap}
	for _, part := range ScalingParts {
		if !slices.Contains(cfg.Parts, part) {
			continue
		}
		if err := parts[part](ctx); err != nil {
			return nil, fmt.Errorf("lab scaling: %s: %w", part, err)
		}
	}
	versions, err := m.versions(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("lab scaling: %w", err)
	}
	maps.Copy(versions, toolVersions())
	params := map[string]any{
		"nodes": len(m.file.Nodes), "CNI": m.file.CNI, "modes": strings.Join(cfg.Modes, ", "), "parts": strings.Join(cfg.Parts, ", "), "quick": cfg.Quick,
		"clients": cfg.Clients, "requests of a run of ab": cfg.Requests, "repetitions": cfg.Repetitions, "connections at a time": scalingConcurrency,
		"replicas at fixed load": scalingReplicas, "autoscaler: interval (s)": cfg.Interval.Seconds(), "autoscaler: target (cores for each pod)": scalingTarget,
		"autoscaler: replicas": "1 to 3", "flap: time of each (s)": cfg.FlapTime.Seconds(), "load server: cpu request of a pod": loadCPU,
		"load average at begin": load, "load average at end": loadAverage(),
	}
	reports := scalingReports(cfg, m.raw)
	for _, r := range reports {
		r.Params, r.Versions = params, versions
	}
	return reports, nil
}

// scalingRun takes the samples.
type scalingRun struct {
	*proxyCluster
	cfg     ScalingConfig
	targets []*target
	pods    *vantage
	lan     *vantage
	from    *vantage // that of cfg.Clients
	raw     ScalingRaw
	turns   int // so far
}

func newScalingRun(ctx context.Context, cfg ScalingConfig) (_ *scalingRun, err error) {
	c, err := openProxyCluster(ctx, cfg.Cluster)
	if err != nil {
		return nil, err
	}
	m := &scalingRun{proxyCluster: c, cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if m.targets, err = m.makeTargets(ctx, "load", stopNow); err != nil {
		return nil, err
	}
	if m.pods, err = c.podClients(ctx, rateHosts); err != nil {
		return nil, err
	}
	if m.lan, err = c.lanClients(rateHosts); err != nil {
		return nil, err
	}
	m.from = m.pods
	if cfg.Clients == VantageLAN {
		m.from = m.lan
	}
	return m, nil
}

// makeTargets makes the services of the modes that are measured.
func (m *scalingRun) makeTargets(ctx context.Context, name, stop string) (targets []*target, err error) {
	if slices.ContainsFunc(m.cfg.Modes, func(mode string) bool { return mode != ModeWangell }) {
		t, err := m.proxyTarget(ctx, name+"-proxy", stop)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	if slices.Contains(m.cfg.Modes, ModeWangell) {
		t, err := m.wangellTarget(ctx, name+"-wangell", stop, scalingMost)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return targets, nil
}

// of returns the target of a mode; direct has that of whoever is there.
func (m *scalingRun) of(mode string) *target {
	for _, t := range m.targets {
		if slices.Contains(t.modes, mode) {
			return t
		}
	}
	return m.targets[0]
}

// enter has a mode be the one that is measured.
func (m *scalingRun) enter(ctx context.Context, mode string, from *vantage) (*target, error) {
	if err := m.setProxyMode(ctx, mode); err != nil {
		return nil, err
	}
	t := m.of(mode)
	return t, t.serves(ctx, from)
}

// scaleAll gives every target so many pods.
func (m *scalingRun) scaleAll(ctx context.Context, n int) error {
	for _, t := range m.targets {
		if err := t.scaleTo(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// nextTurn returns the modes in the order in which the next repetition measures them: it begins with the one that the
// last one ended with.
func (m *scalingRun) nextTurn() []string {
	m.turns++
	return inTurn(m.cfg.Modes, m.turns-1)
}

// inTurn returns the modes in the order of a repetition: forth and back, so that each follows each, and kube-proxy is
// switched once a repetition.
func inTurn(modes []string, repetition int) []string {
	order := slices.Clone(modes)
	if repetition%2 == 1 {
		slices.Reverse(order)
	}
	return order
}
