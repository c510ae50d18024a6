// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func probeOf(delay, period, success, fail int32) *corev1.Probe {
	return &corev1.Probe{
		InitialDelaySeconds: delay, PeriodSeconds: period, TimeoutSeconds: 1, SuccessThreshold: success,
		FailureThreshold: fail,
	}
}

// run gives a machine answers, each as soon as its probe is due and after a time, and returns what each changed and the
// pause before each probe.
func run(m *Machine, now time.Time, took time.Duration, answers string) (changes string, pauses []time.Duration) {
	for _, a := range answers {
		next := m.Next()
		pauses = append(pauses, next.Sub(now))
		if next.After(now) {
			now = next
		}
		started := now
		now = now.Add(took)
		changes += map[Change]string{NoChange: ".", Ready: "R", Unready: "U", Failed: "F"}[m.Answered(started, now, a == '+')]
	}
	return changes, pauses
}

func TestThresholdsCountAnswersInARow(t *testing.T) {
	at := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		probe         *corev1.Probe
		ready         bool
		answers, want string
	}{
		"the first success is enough":         {probeOf(0, 10, 1, 3), false, "---+", "...R"},
		"several successes are needed":        {probeOf(0, 10, 3, 3), false, "++-++-+++", "........R"},
		"three failures take it out":          {probeOf(0, 10, 1, 3), true, "--+---", ".....U"},
		"it comes back":                       {probeOf(0, 10, 1, 2), true, "--+--+", ".UR.UR"},
		"it comes back after several":         {probeOf(0, 10, 2, 1), true, "-+-++-", "U...RU"},
		"failures before the first do not":    {probeOf(0, 10, 1, 1), false, "------+", "......R"},
		"after the first success they do":     {probeOf(0, 10, 1, 1), false, "-+-", ".RU"},
		"a ready pod that succeeds stays so":  {probeOf(0, 10, 1, 1), true, "+++", "..."},
		"an answer resets the other's count":  {probeOf(0, 10, 1, 2), true, "-+-+--", ".....U"},
		"successes are counted from the last": {probeOf(0, 10, 2, 1), true, "-+++-", "U.R.U"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _ := run(NewMachine(Spec{Probe: c.probe}, at, c.ready), at, time.Millisecond, c.answers); got != c.want {
				t.Errorf("%s: %s, want %s", c.answers, got, c.want)
			}
		})
	}
}

func TestProbesAreFrequentUntilThePodServesForTheFirstTime(t *testing.T) {
	at := time.Unix(1000, 0)
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		probe   *corev1.Probe
		took    time.Duration
		answers string
		want    []time.Duration // before each probe
	}{
		"quick":                    {probeOf(0, 10, 1, 3), ms, "--++", []time.Duration{0, 5 * ms, 5 * ms, 9999 * ms}},
		"as long as a slow one":    {probeOf(0, 10, 1, 3), 80 * ms, "--+", []time.Duration{0, 80 * ms, 80 * ms}},
		"at most the period":       {probeOf(0, 1, 1, 3), 3 * time.Second, "--", []time.Duration{0, time.Second}},
		"the delay counts once":    {probeOf(2, 10, 1, 3), ms, "--", []time.Duration{2 * time.Second, 5 * ms}},
		"later at the period only": {probeOf(0, 10, 1, 1), ms, "+--+", []time.Duration{0, 9999 * ms, 9999 * ms, 9999 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := run(NewMachine(Spec{Probe: c.probe}, at, false), at, c.took, c.answers)
			for i := range got {
				if got[i] != c.want[i] {
					t.Fatalf("pauses %v, want %v", got, c.want)
				}
			}
		})
	}
	if m := NewMachine(Spec{Probe: probeOf(0, 10, 1, 3)}, at, true); m.Next() != at.Add(10*time.Second) {
		t.Errorf("a pod that serves already is probed at %v", m.Next().Sub(at))
	}
}

func TestReadinessProbeBeginsWhenTheStartupProbeHasSucceeded(t *testing.T) {
	at := time.Unix(1000, 0)
	const ms = time.Millisecond
	m := NewMachine(Spec{Probe: probeOf(1, 10, 2, 3), Startup: probeOf(0, 2, 1, 5)}, at, false)
	changes, pauses := run(m, at, ms, "---+")
	if changes != "...." || m.Starting() || m.Ready() || m.Failed() || pauses[0] != 0 || pauses[1] != 5*ms {
		t.Errorf("%s with pauses %v; starting %t, ready %t", changes, pauses, m.Starting(), m.Ready())
	}
	if next := m.Next(); next != at.Add(time.Second) { // its delay counts from the pod's begin
		t.Errorf("the readinessProbe begins at %v", next.Sub(at))
	}
	if changes, _ := run(m, at.Add(time.Second), ms, "+++---"); changes != ".R...U" || m.Starting() {
		t.Errorf("then: %s", changes)
	}
	if m := NewMachine(Spec{Probe: probeOf(0, 10, 1, 3), Startup: probeOf(0, 2, 1, 5)}, at, true); m.Starting() {
		t.Error("a pod that serves is starting")
	}
}

func TestStartupProbeFailsAfterItsPeriodsHoweverOftenItRuns(t *testing.T) {
	at := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		took    time.Duration
		answers string
		want    string
		failed  bool
	}{
		"many quick probes within the time": {time.Millisecond, "------------------", "..................", false},
		// The second ends after the delay of 3 s and 2 periods of 3 s.
		"slow ones beyond it":                {4 * time.Second, "----", ".F..", true},
		"it succeeds after all":              {4 * time.Second, "---+", ".F..", false},
		"the one that ends late has success": {10 * time.Second, "+", ".", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := NewMachine(Spec{Probe: probeOf(0, 10, 1, 3), Startup: probeOf(3, 3, 1, 2)}, at, false)
			if got, _ := run(m, at, c.took, c.answers); got != c.want || m.Failed() != c.failed {
				t.Errorf("%s: %s, want %s; failed %t", c.answers, got, c.want, m.Failed())
			}
		})
	}
}
