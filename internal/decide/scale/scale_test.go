// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

func at(s float64) monotime.Time { return monotime.Time(1 + int64(s*1e9)) }

// The rule alone, without windows or pace.
func TestFormulaFollowsTheAutoscalersRule(t *testing.T) {
	p := Policy{Metric: "connections", Target: 10, Min: 1, Max: 10}
	for _, c := range []struct {
		replicas int
		value    float64
		want     int
		limit    string
	}{
		{1, 10, 1, ""},
		{1, 10.9, 1, "tolerance"},
		{1, 11, 1, "tolerance"}, // exactly 10 % is within
		{1, 11.1, 2, ""},
		{1, 20, 2, ""},
		{1, 21, 3, ""},
		{2, 9.1, 2, ""},
		{10, 9.1, 10, ""},
		{10, 8.9, 9, ""},
		{4, 2.5, 1, ""},
		{4, 0, 1, "minReplicas"},
		{1, 1000, 10, "maxReplicas"},
		{5, math.NaN(), 5, "no value"},
		{5, -1, 5, "no value"},
		{3, math.Inf(1), 10, "maxReplicas"},
		{20, 10, 10, "maxReplicas"}, // the bound was lowered
	} {
		d := new(Scaler).Decide(p, Observation{at(0), c.replicas, c.value})
		if d.Replicas != c.want || d.Limit != c.limit {
			t.Errorf("%d pods, %v each: %+v; want %d, limit %q", c.replicas, c.value, d, c.want, c.limit)
		}
	}
	if d := new(Scaler).Decide(Policy{Target: 0.3, Min: 1, Max: 9}, Observation{at(0), 3, 0.1}); d.Replicas != 1 {
		t.Errorf("a quotient that is whole but for rounding: %+v", d)
	}
}

// step is an observation with the expected decision.
type step struct {
	at       float64
	value    float64
	replicas int // after it
	limit    string
}

func play(t *testing.T, p Policy, replicas int, steps []step) {
	t.Helper()
	var s Scaler
	for _, st := range steps {
		d := s.Decide(p, Observation{at(st.at), replicas, st.value})
		if d.Replicas != st.replicas || d.Limit != st.limit {
			t.Fatalf("at %v s, %d pods, %v each: %+v; want %d, limit %q", st.at, replicas, st.value, d, st.replicas, st.limit)
		}
		replicas = d.Replicas
	}
}

func TestStepLimitsTheChange(t *testing.T) {
	play(t, Policy{Target: 1, Min: 1, Max: 9, Out: Direction{MaxStep: 2}, In: Direction{MaxStep: 1}}, 1, []step{
		{0, 9, 3, "step"}, {1, 3, 5, "step"}, {2, 9. / 5, 7, "step"}, {3, 9. / 7, 9, ""}, {4, 0, 8, "step"},
		{5, 0, 7, "step"},
	})
}

func TestIntervalDelaysTheNextChange(t *testing.T) {
	play(t, Policy{Target: 1, Min: 1, Max: 9, Out: Direction{Interval: 10 * time.Second},
		In: Direction{Interval: 30 * time.Second}}, 1, []step{
		{0, 2, 2, ""}, {5, 2, 2, "interval"}, {9.9, 2, 2, "interval"}, {10, 2, 4, ""}, {20, 0.5, 4, "interval"},
		{39.9, 0.5, 4, "interval"}, {40, 0.5, 2, ""},
		{45, 1.5, 2, "interval"}, {50, 1.5, 3, ""},
	})
}

func TestWindowTakesTheMostCarefulRecommendation(t *testing.T) {
	play(t, Policy{Target: 1, Min: 1, Max: 9, In: Direction{Window: 10 * time.Second}}, 4, []step{
		{0, 1, 4, ""}, {5, 0.5, 4, "window"}, {10, 0.5, 4, "window"}, {10.1, 0.75, 3, ""},
	})
	play(t, Policy{Target: 1, Min: 1, Max: 9, Out: Direction{Window: 10 * time.Second}}, 1, []step{
		{0, 1, 1, ""}, {5, 4, 1, "window"}, {10, 4, 1, "window"}, {10.1, 3, 3, ""},
	})
}

func TestBoundsApplyAtOnce(t *testing.T) {
	slow := Direction{Interval: time.Hour, Window: time.Hour, MaxStep: 1}
	var s Scaler
	if d := s.Decide(Policy{Target: 1, Min: 3, Max: 9, Out: slow, In: slow}, Observation{at(0), 1, 1}); d.Replicas != 3 {
		t.Errorf("below the least: %+v", d)
	}
	if d := s.Decide(Policy{Target: 1, Min: 1, Max: 2, Out: slow, In: slow}, Observation{at(1), 3, 1}); d.Replicas != 2 {
		t.Errorf("above the most: %+v", d)
	}
}

func TestCheckRefusesWhatCannotBe(t *testing.T) {
	good := Policy{Target: 1, Min: 1, Max: 1}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for _, change := range []func(*Policy){
		func(p *Policy) { p.Target = 0 }, func(p *Policy) { p.Target = math.NaN() },
		func(p *Policy) { p.Target = math.Inf(1) },
		func(p *Policy) { p.Min = 0 }, func(p *Policy) { p.Max = 0 }, func(p *Policy) { p.In.MaxStep = -1 },
		func(p *Policy) { p.Out.Window = -1 },
	} {
		p := good
		change(&p)
		if p.Check() == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
}

// For any policy and load, the number is within its bounds, changes by at most a step, and comes to rest while the load
// stays the same.
func TestReplicasComeToRestAtConstantLoad(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		direction := func() Direction {
			return Direction{time.Duration(r.IntN(20)) * time.Second, time.Duration(r.IntN(60)) * time.Second, r.IntN(4)}
		}
		p := Policy{Target: 0.1 + 10*r.Float64(), Min: 1 + r.IntN(3), Out: direction(), In: direction()}
		p.Max = p.Min + r.IntN(10)
		load := r.Float64() * p.Target * 15 // of all pods together
		var s Scaler
		replicas, moved := 1+r.IntN(15), 0
		const rounds = 3000
		for i := range rounds {
			d := s.Decide(p, Observation{at(float64(i)), replicas, load / float64(replicas)})
			if d.Replicas < p.Min || d.Replicas > p.Max {
				t.Fatalf("seed %d: out of bounds: %+v %+v", seed, p, d)
			}
			if i > 0 && d.Replicas != replicas {
				if up := d.Replicas - replicas; p.Out.MaxStep > 0 && up > p.Out.MaxStep || p.In.MaxStep > 0 && -up > p.In.MaxStep {
					t.Fatalf("seed %d: a step of %d: %+v", seed, up, p)
				}
				moved = i
			}
			replicas = d.Replicas
		}
		if moved > rounds/2 {
			t.Fatalf("seed %d: still moves after %d s at constant load: %+v", seed, moved, p)
		}
		if per := load / float64(replicas); per > p.Target*(1+Tolerance) && replicas < p.Max {
			t.Fatalf("seed %d: rests at %d pods with %v each: %+v", seed, replicas, per, p)
		}
	}
}

func TestDecisionTellsItsReason(t *testing.T) {
	d := new(Scaler).Decide(Policy{Metric: "connections", Target: 10, Min: 1, Max: 3}, Observation{at(0), 1, 55})
	if s := d.String(); !strings.Contains(s, "connections 55") || !strings.Contains(s, "target "+
		"10") || !strings.Contains(s, "wants 6") || !strings.Contains(s, "3 because of maxReplicas") {
		t.Error(s)
	}
}

func BenchmarkDecide(b *testing.B) {
	p := Policy{Target: 1, Min: 1, Max: 9, In: Direction{Window: 60 * time.Second}}
	var s Scaler
	for i := 0; b.Loop(); i++ {
		s.Decide(p, Observation{at(float64(i)), 4, 0.9})
	}
}
