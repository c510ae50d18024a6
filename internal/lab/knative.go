// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The sides of the experiment Knative: who answers a request for the same image.
const (
	SideWangell = "wangell"
	// SideFloor is a pod from Wangell's own template, made by hand and polled: what the cluster alone takes.
	SideFloor = "floor"
	// SideKnative is a Knative service as it is by default.
	SideKnative = "knative"
	// SideKnativeNoToken is a Knative service whose pods have no service account token volume, which favours it.
	SideKnativeNoToken = "knative_notoken"
)

// KnativeSides are all sides, in the order in which a round asks them.
var KnativeSides = []string{SideWangell, SideFloor, SideKnative, SideKnativeNoToken}

// KnativeConfig configures Knative.
type KnativeConfig struct {
	// Cluster is the file cluster.json of a cluster that test/cluster has started. Wangell's chart and Knative
	// (test/knative) are installed there already, as far as Sides asks for them.
	Cluster string
	// Requests is how many cold requests to each side are measured. Default: 30, or 3 if Quick.
	Requests int
	// Quick makes fewer requests: to see that it works, not to trust the numbers.
	Quick bool
	// Sides are those of KnativeSides that are measured. Default: all.
	Sides []string
	// Seed makes the random pauses.
	Seed uint64
	// Progress is called after every round; it may be nil.
	Progress func(done, total int)
}

const (
	// knativePauseMax is the longest pause before a cold request. Pauses are random: without them Knative's requests
	// lock onto the tick by which kubelet publishes what has become of a pod.
	knativePauseMax = time.Second
	// knativeQuiet is how long all sides have had no pod before a round: what ended may be written down everywhere.
	knativeQuiet = 2 * time.Second
	// knativeWarm is how many warm requests follow each cold one.
	knativeWarm = 10
	// zeroTimeout is how long the sides may take to have no pod, readyTimeout how long a new pod to be ready.
	zeroTimeout  = 4 * time.Minute
	readyTimeout = time.Minute
	// lookAgain is the pause between two looks at the API, while nothing is measured.
	lookAgain = 200 * time.Millisecond
)

// KnativeSample is one cold request and the warm ones after it. Times are in milliseconds since just before connect(),
// for the floor since just before the pod was asked for.
type KnativeSample struct {
	Connected float64 `json:"connected_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	// Done is when the whole answer was there: what the summary is about.
	Done float64 `json:"done_ms"`
	// At is when the request began, Pod the pod that came of it, Node the pod's node.
	At   time.Time `json:"at"`
	Pod  string    `json:"pod,omitempty"`
	Node string    `json:"node,omitempty"`
	// Phases are the ends of phases: of a wake as Wangell's status has them, of the floor as the node's runtime tells.
	Phases map[string]float64 `json:"phases_ms,omitempty"`
	// Warm has for each warm request afterwards when its whole answer was there.
	Warm []float64 `json:"warm_ms,omitempty"`
	// Error tells why the request was lost; empty if it was answered.
	Error string `json:"error,omitempty"`
	// WarmErrors tells of warm requests that were lost.
	WarmErrors []string `json:"warm_errors,omitempty"`
}

// KnativeRaw has the samples of each side, in the order in which they were taken.
type KnativeRaw map[string][]KnativeSample

func (c KnativeConfig) withDefaults() (KnativeConfig, error) {
	switch {
	case c.Cluster == "":
		return c, errors.New("lab knative: no cluster: give the cluster.json of one that test/cluster has started")
	case c.Requests < 0:
		return c, fmt.Errorf("lab knative: %d requests: want at least 1", c.Requests)
	case c.Requests == 0 && c.Quick:
		c.Requests = 3
	case c.Requests == 0:
		c.Requests = 30
	}
	for _, s := range c.Sides {
		if !slices.Contains(KnativeSides, s) {
			return c, fmt.Errorf("lab knative: no side %q: there are %s", s, strings.Join(KnativeSides, ", "))
		}
	}
	if len(c.Sides) == 0 {
		c.Sides = KnativeSides
	}
	if c.Progress == nil {
		c.Progress = func(int, int) {}
	}
	return c, nil
}

// Knative measures requests to a service without any pod: Wangell's, Knative's, and the floor, in turn, on the same
// cluster with the same image. A request that is lost is a sample with an error; the report counts it.
func Knative(ctx context.Context, cfg KnativeConfig) (_ *Report, err error) {
	if cfg, err = cfg.withDefaults(); err != nil {
		return nil, err
	}
	c, err := openCluster(ctx, cfg.Cluster)
	if err != nil {
		return nil, fmt.Errorf("lab knative: %w", err)
	}
	defer func() {
		if closeErr := c.close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("lab knative: clean up: %w", closeErr))
		}
	}()
	m := &knativeRun{cfg: cfg, cluster: c, random: rand.New(rand.NewPCG(cfg.Seed, 0)), raw: KnativeRaw{}}
	loadBefore := loadAverage()
	if err := m.run(ctx); err != nil {
		return nil, fmt.Errorf("lab knative: %w", err)
	}
	versions, err := c.versions(ctx, cfg.Sides)
	if err != nil {
		return nil, fmt.Errorf("lab knative: %w", err)
	}
	params, err := c.params(ctx, cfg.Sides)
	if err != nil {
		return nil, fmt.Errorf("lab knative: %w", err)
	}
	for k, v := range map[string]any{
		"requests": cfg.Requests, "uncounted rounds before": 1, "sides": strings.Join(cfg.Sides, ", "), "seed": cfg.Seed,
		"longest random pause before a cold request (ms)": ms(knativePauseMax), "time without any pod before a round (ms)": ms(knativeQuiet),
		"warm requests after each cold one": knativeWarm, "floor: pause between attempts (ms)": ms(FloorPoll),
		"load average at begin": loadBefore, "load average at end": loadAverage(),
	} {
		params[k] = v
	}
	for _, s := range m.sides {
		if f, ok := s.(*floorSide); ok {
			params["floor: pod template"] = f.source
		}
	}
	r := knativeReport(m.raw)
	r.Params, r.Versions = params, versions
	return r, nil
}

// knativeRun takes the samples.
type knativeRun struct {
	cfg     KnativeConfig
	cluster *labCluster
	random  *rand.Rand
	sides   []side
	raw     KnativeRaw
}

// run takes rounds of samples, one of each side; the first round is not counted.
func (m *knativeRun) run(ctx context.Context) error {
	image, err := m.cluster.pushHello(ctx)
	if err != nil {
		return err
	}
	var wangell *wangellSide
	for _, name := range m.cfg.Sides {
		var s side
		switch name {
		case SideWangell:
			wangell = &wangellSide{cluster: m.cluster, image: image}
			s = wangell
		case SideFloor:
			s = &floorSide{cluster: m.cluster, image: image, wangell: wangell}
		case SideKnative, SideKnativeNoToken:
			s = &knativeSide{cluster: m.cluster, image: image, token: name == SideKnative}
		}
		if err := s.prepare(ctx); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		m.sides = append(m.sides, s)
	}
	for i := range m.cfg.Requests + 1 {
		if err := m.cluster.untilZero(ctx); err != nil {
			return err
		}
		for _, s := range roundOrder(m.sides, i) {
			sample, err := m.sample(ctx, s)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", s.name(), i, err)
			}
			if i > 0 {
				m.raw[s.name()] = append(m.raw[s.name()], sample)
			}
		}
		if i > 0 {
			m.cfg.Progress(i, m.cfg.Requests)
		}
	}
	return nil
}

// roundOrder returns the order of a round: the two kinds of Knative change places from round to round, as the second of
// them finds the first one's idle pod on the node.
func roundOrder(sides []side, round int) []side {
	order := slices.Clone(sides)
	if n := len(order); round%2 == 1 && n >= 2 && order[n-1].name() == SideKnativeNoToken && order[n-2].name() == SideKnative {
		order[n-1], order[n-2] = order[n-2], order[n-1]
	}
	return order
}

// sample does one cold request and the warm ones after it. Only what makes further samples pointless is an error; a
// lost request is a sample.
func (m *knativeRun) sample(ctx context.Context, s side) (KnativeSample, error) {
	pause := time.Duration(m.random.Int64N(int64(knativePauseMax)))
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return KnativeSample{}, ctx.Err()
	}
	// Nothing of this side is there, and nothing starts or ends that is another's.
	pods, err := m.cluster.pods(ctx)
	if err != nil {
		return KnativeSample{}, err
	}
	if err := mayBegin(pods, s.name()); err != nil {
		return KnativeSample{}, err
	}
	sample, err := s.cold(ctx)
	if err != nil {
		return sample, err
	}
	if sample.Error == "" {
		if err := m.came(ctx, s, &sample); err != nil {
			return sample, err
		}
		for range knativeWarm {
			t, err := s.warm(ctx)
			if ctx.Err() != nil {
				return sample, ctx.Err()
			}
			if err != nil {
				sample.WarmErrors = append(sample.WarmErrors, err.Error())
				continue
			}
			sample.Warm = append(sample.Warm, ms(t.Done))
		}
	}
	return sample, s.rest(ctx)
}

// came waits until the pod that answered is ready, so that its start does not disturb the next sample, and notes it.
func (m *knativeRun) came(ctx context.Context, s side, sample *KnativeSample) error {
	return until(ctx, readyTimeout, func() error {
		pods, err := m.cluster.pods(ctx)
		if err != nil {
			return err
		}
		own := podsOf(pods, s.name())
		if len(own) == 0 {
			return errors.New("the request was answered, but there is no pod")
		}
		if !ready(&own[0]) {
			return fmt.Errorf("pod %s answered but is not ready", own[0].Name)
		}
		sample.Pod, sample.Node = own[0].Name, own[0].Spec.NodeName
		return nil
	})
}
