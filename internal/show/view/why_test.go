// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
)

func TestWhyExplainsTheNumberOfPods(t *testing.T) {
	wait := int64(60)
	for name, c := range map[string]struct {
		metric  v1alpha1.ScalingMetric
		open    uint32
		desired int32
		least   int32
		want    string
	}{
		"enough": {"connections", 20, 2, 0, "Its load of 20 open connections needs 2 pods, at a target of 10 for each."},
		"too many": {"connections", 51, 5, 0,
			"Its load of 51 open connections needs 6 pods, at a target of 10 for each. " +
				"maxReplicas is 5: it gets no more."},
		"minimum": {"connections", 7, 3, 3,
			"Its load of 7 open connections needs 1 pod, at a target of 10 for each. " +
				"It keeps 3, its minimum while it is awake."},
		"none open": {"connections", 0, 1, 0,
			"Its load of 0 open connections needs 0 pods, at a target of 10 for each. " +
				"It keeps 1, its minimum while it is awake."},
		"tolerance": {"connections", 110, 12, 0,
			"Its load of 110 open connections needs 11 pods, at a target of 10 for each. " +
				"It keeps 12, as each is within 10 % of the target."},
		"shrinks": {"connections", 12, 4, 0,
			"Its load of 12 open connections needs 2 pods, at a target of 10 for each. " +
				"It has 4: they become fewer once fewer have sufficed for 1 min (inStabilization)."},
		"by CPU": {"cpu", 0, 2, 0,
			"The number of pods follows the metric cpu, with a target of 10 for each pod: from 1 to 5 pods."},
	} {
		w := why{Status: named("web", now), now: now}
		w.Desired, w.Traffic.OpenFlows = int(c.desired), c.open
		w.Service.Spec.MinReplicas, w.Service.Spec.MaxReplicas = c.least, max(5, c.desired)
		w.Service.Spec.Scaling = &v1alpha1.Scaling{Metric: c.metric, Target: 10, InStabilization: &wait}
		w.scaling()
		if got := strings.Join(w.sentences, " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	w := why{Status: named("web", now), now: now}
	w.scaling()
	if w.sentences != nil {
		t.Errorf("a fixed number: %v", w.sentences)
	}
}

func TestOutputIsWantedWhereTheServiceDoesNotStart(t *testing.T) {
	wakes := []lifecycle.Waterfall{{Result: lifecycle.ResultWarm}, {Result: lifecycle.ResultFailed}}
	for state, want := range map[lifecycle.State][2]bool{
		lifecycle.Failed: {true, true}, lifecycle.Waking: {true, true}, lifecycle.Cold: {true, false},
		lifecycle.Warm: {},
	} {
		s := named("web", now)
		s.Service.Status.State = state.String()
		if got := [2]bool{WantsOutput(s, wakes), WantsOutput(s, wakes[:1])}; got != want {
			t.Errorf("%s: %v, want %v", state, got, want)
		}
	}
}

func TestWhyNamesTheNumberThatDecides(t *testing.T) {
	wake := func(result lifecycle.Result, reason string, phases ...lifecycle.Phase) []lifecycle.Waterfall {
		return []lifecycle.Waterfall{{Number: 3, Start: now.Add(-2 * time.Second), Result: result, Reason: reason,
			Parked: 4, Phases: phases}}
	}
	listening := lifecycle.Phase{Name: lifecycle.PhaseListening, At: 61234 * time.Microsecond}
	for name, c := range map[string]struct {
		state   lifecycle.State
		last    time.Duration // since the last packet; 0 for none
		wakes   []lifecycle.Waterfall
		change  func(*status.Status)
		reasons []string
	}{
		"asleep": {
			state: lifecycle.Cold, last: 2*time.Hour + 3*time.Minute, wakes: wake(lifecycle.ResultWarm, "", listening),
			reasons: []string{
				"It is asleep: it has no pod.", "Its last packet came 2 h 3 min ago, and idleTimeout is 5 min.",
				"The first connection to 10.46.100.2:80 wakes it.", "Its last wake took 61.2 ms until the pod listened.",
			},
		},
		"never used": {
			state:  lifecycle.Cold,
			change: func(s *status.Status) { s.Service.Status.Message = `image "x" is being pulled: 3 %` },
			reasons: []string{
				"It is asleep: it has no pod.", "No client has used it since this instance started.",
				"The first connection to 10.46.100.2:80 wakes it.", `image "x" is being pulled: 3 %.`,
			},
		},
		"not used since another leader": {
			state:  lifecycle.Cold,
			change: func(s *status.Status) { s.HistorySince = now.Add(-time.Minute) },
			reasons: []string{
				"It is asleep: it has no pod.",
				"No client is known since " + clock(now.Add(-time.Minute), now) + ", when this controller began to lead.",
				"The first connection to 10.46.100.2:80 wakes it.",
			},
		},
		"waking": {
			state: lifecycle.Waking,
			wakes: wake(lifecycle.ResultRunning, "", lifecycle.Phase{Name: lifecycle.PhaseImage, At: time.Second}),
			reasons: []string{
				"It has been waking for 2 s, and fails after a wakeTimeout of 1 min.",
				`The last phase that ended is "image", 1 s after the first connection request.`,
				"Parked connection requests: 4.",
			},
		},
		"awake": {
			state: lifecycle.Warm, last: 12 * time.Second,
			change: func(s *status.Status) { s.Serving, s.Desired, s.Traffic.OpenFlows = 1, 2, 7 },
			reasons: []string{
				"It is awake: 1 of 2 pods serve, with 7 open connections.",
				"Its last packet came 12 s ago: without another one it sleeps in 4 min 48 s, as idleTimeout is 5 min.",
			},
		},
		"frozen": {
			state: lifecycle.Frozen, last: 70 * time.Second,
			change: func(s *status.Status) {
				s.Traffic.OpenFlows = 3
				s.Pods = []status.Pod{{ID: "a-1", Frozen: &status.Frozen{
					Since: now.Add(-time.Minute), ResidentBytes: 3 << 20, SwappedBytes: 90 << 20,
				}}}
			},
			reasons: []string{
				"It is frozen: its pod is there with all processes and connections, and uses no CPU. 3 open connections.",
				"Pod a-1 has been frozen for 1 min, with 3.0 MiB in RAM and 90.0 MiB in swap.",
				"The next packet to 10.46.100.2:80 that its program has to answer lets it run on.",
				"Without one it is stopped in 3 min 50 s, as stopAfter is 5 min.",
			},
		},
		"frozen within a period of its schedule": {
			state: lifecycle.Frozen, last: time.Hour,
			change: func(s *status.Status) {
				s.Service.Spec.Sleep = &v1alpha1.Sleep{Schedule: []v1alpha1.WarmPeriod{{}}}
				s.Outlook = &status.Outlook{Wanted: status.WantedBySchedule, Change: now.UTC()}
			},
			reasons: []string{
				"It is frozen: its pods are there with all processes and connections, and uses no CPU. 0 open connections.",
				"The next packet to 10.46.100.2:80 that its program has to answer lets it run on.",
				"sleep.schedule keeps a pod until " + now.Local().Format("2006-01-02 15:04 MST") + " at least.",
			},
		},
		"frozen, and likely to be used later": {
			state: lifecycle.Frozen, last: 20 * time.Second,
			change: func(s *status.Status) { s.Outlook = &status.Outlook{Basis: "series", IdleTimes: 7, Keep: 60} },
			reasons: []string{
				"It is frozen: its pods are there with all processes and connections, and uses no CPU. 0 open connections.",
				"The next packet to 10.46.100.2:80 that its program has to answer lets it run on.",
				"Its last packet came 20 s ago: it is stopped after a minute without another one.",
				"The forecast is made from its last 7 pauses, most of which are long: the next use is expected 0.0 ms to 1 min " +
					"after the last one.",
			},
		},
		"at work": {
			state: lifecycle.Warm, last: 12 * time.Second,
			change: func(s *status.Status) { s.Serving, s.Desired, s.NotFrozen = 1, 1, "a pod works" },
			reasons: []string{
				"It is awake: 1 of 1 pods serve, with 0 open connections.", "It is not frozen: a pod works.",
				"Its last packet came 12 s ago: without another one it sleeps in 4 min 48 s, as idleTimeout is 5 min.",
			},
		},
		"never sleeps": {
			state: lifecycle.Warm, last: time.Hour,
			change: func(s *status.Status) {
				s.Serving, s.Desired, s.Service.Spec.MinReplicas = 1, 1, 1
				s.Pods = []status.Pod{{ID: "web-1", State: "draining", Traffic: status.Traffic{OpenFlows: 2}}}
			},
			reasons: []string{
				"It is awake: 1 of 1 pods serve, with 0 open connections.", "Pod web-1 is draining, with 2 open connections.",
				"minReplicas is 1: it never sleeps.",
			},
		},
		"the gate is full": {
			state: lifecycle.Cold,
			change: func(s *status.Status) {
				s.Pressure = status.Pressure{Reason: "Table", Message: "the gate's table flows is almost full"}
			},
			reasons: []string{
				"It is asleep: it has no pod.", "No client has used it since this instance started.",
				"The first connection to 10.46.100.2:80 wakes it.", "Scarce: the gate's table flows is almost full.",
			},
		},
		"failed": {
			state: lifecycle.Failed, wakes: wake(lifecycle.ResultFailed, "no image"),
			change: func(s *status.Status) { s.Service.Status.Message = "no image" },
			reasons: []string{
				"Its last wake failed: no image.",
				"That was 2 s ago. Clients that waited were refused; the next connection to 10.46.100.2:80 tries again.",
			},
		},
	} {
		var last time.Time
		if c.last > 0 {
			last = now.Add(-c.last)
		}
		s := named("web", last)
		s.Service.Spec.IdleTimeout, s.Service.Spec.WakeTimeout, s.Service.Status.State = 300, 60, c.state.String()
		if c.change != nil {
			c.change(&s)
		}
		if got := Why(s, c.wakes, now); !slices.Equal(got, c.reasons) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(c.reasons, "\n"))
		}
	}
}

func TestWhyTellsWhatIsForeseen(t *testing.T) {
	zone := time.Local
	time.Local = time.UTC
	defer func() { time.Local = zone }()
	at := time.Date(2026, 11, 25, 17, 0, 0, 0, time.UTC)
	schedule := &v1alpha1.Sleep{Schedule: []v1alpha1.WarmPeriod{{}}}
	for name, c := range map[string]struct {
		sleep *v1alpha1.Sleep
		o     *status.Outlook
		want  string
	}{
		"nothing": {nil, nil, ""},
		"in a period": {schedule, &status.Outlook{Wanted: status.WantedBySchedule, Change: at},
			"sleep.schedule keeps a pod until 2026-11-25 17:00 UTC at least."},
		"before a period": {schedule, &status.Outlook{Change: at},
			"A pod is started at 2026-11-25 17:00 UTC, even if nobody asks for one."},
		"before a use": {nil, &status.Outlook{Change: at, Basis: "histogram", IdleTimes: 30, Prewarm: 3240, Keep: 786},
			"It is likely to be used after 2026-11-25 17:00 UTC: a pod is started then. The forecast is made from its last " +
				"30 pauses, which are alike: the next use is expected 54 min to 1 h 7 min after the last one."},
		"ready for a use": {nil, &status.Outlook{Wanted: status.WantedByForecast, Change: at, Basis: "series",
			IdleTimes: 7, Prewarm: 20 * 3600, Keep: 8 * 3600},
			"It is likely to be used by 2026-11-25 17:00 UTC, and keeps a pod until then. The forecast is made from its last " +
				"7 pauses, most of which are long: the next use is expected 20 h to 28 h after the last one."},
		"no forecast": {nil, &status.Outlook{Wanted: status.WantedByForecast, Change: at, Basis: "unknown",
			IdleTimes: 1, Keep: 300},
			"Without another packet, it sleeps at 2026-11-25 17:00 UTC. There is no forecast, as the pauses between its " +
				"uses are too few or too different (1 known): idleTimeout counts, 5 min."},
	} {
		w := why{Status: named("web", now), now: now}
		w.Service.Spec.Sleep, w.Service.Spec.IdleTimeout, w.Outlook = c.sleep, 300, c.o
		w.outlook()
		if got := strings.Join(w.sentences, " "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
