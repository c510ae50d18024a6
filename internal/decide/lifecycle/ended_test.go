// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "testing"

func TestReasonOfAnEndReplacesWhatWasToldBefore(t *testing.T) {
	const why, oom = "pod p was evicted by its node (Evicted: memory)", "process was ended by signal 9: out of memory"
	const next = "; the next connection request wakes it again"
	evicted := Ended{Ref: 1, Why: why}
	crash := did{5, Exited{1, 0, ""}, Cold, "publish 3 1:draining | stop 1 0s | error: crashed: process exited with " +
		"code 0" + next}
	for name, c := range map[string]struct {
		way, rest []did
		message   string
	}{
		"at once": {toWarm[:4:4], []did{
			{5, evicted, Cold, "publish 3 1:draining | stop 1 0s | error: ended: " + why + next},
			{5, Exited{1, 0, ""}, Cold, ""}, {6, evicted, Cold, ""}}, "ended: " + why},
		"later": {toWarm[:4:4], []did{crash, {6, evicted, Cold, "warn: why a pod crashed: " + why}, {7, evicted, Cold, ""}},
			"ended: " + why},
		"later, of a crash": {toWarm[:4:4], []did{crash, {6, Ended{1, oom, true}, Cold, "warn: why a pod crashed: " + oom}},
			"crashed: " + oom},
		"when the pod is gone": {toWarm[:4:4], []did{crash, {6, StopDone{1}, Cold, "publish 4"},
			{7, evicted, Cold, "warn: why a pod crashed: " + why}}, "ended: " + why},
		"when the service is awake again": {toWarm[:4:4], []did{crash,
			{6, WakeAsked{Parked: 1}, Waking, "start 2 | timer 1m6s | info: wakes: 1 connection request parked"},
			{7, evicted, Waking, "warn: why a pod crashed: " + why}}, ""},
		"of another pod": {toWarm[:4:4], []did{crash, {6, Ended{Ref: 9, Why: why}, Cold, ""}},
			"crashed: process exited with code 0"},
		"of a wake": {toNet, []did{
			{1, Exited{1, 137, ""}, Failed, "publish 2 | refuse: process was ended by signal 9 | stop 1 0s | timer never | " +
				"error: wake failed: process was ended by signal 9"},
			{2, Ended{1, oom, true}, Failed, "warn: why a pod crashed: " + oom}}, oom},
	} {
		t.Run(name, func(t *testing.T) {
			walk(t, testSpec, c.way, c.rest)
			m := New(testSpec, 0)
			for _, d := range append(c.way[:len(c.way):len(c.way)], c.rest...) {
				m.Step(d.ev, at(d.at))
			}
			if m.Message() != c.message {
				t.Errorf("message %q, want %q", m.Message(), c.message)
			}
		})
	}
}

// A program that makes itself a daemon ends without an error before anything listens; one that has served just ends.
func TestProgramThatLeavesTheForegroundIsToldToStay(t *testing.T) {
	walk(t, testSpec, toNet, []did{{1, Exited{1, 0, "the end of its log"}, Failed,
		"publish 2 | refuse: process exited with code 0: " + inForeground + "; the end of its log | stop 1 0s | " +
			"timer never | error: wake failed: process exited with code 0: " + inForeground + "; the end of its log"}})
	walk(t, testSpec, toWarm[:4:4], []did{{5, Exited{1, 0, ""}, Cold, "publish 3 1:draining | stop 1 0s | " +
		"error: crashed: process exited with code 0; the next connection request wakes it again"}})
}
