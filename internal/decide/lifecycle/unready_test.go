// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "testing"

func TestPodServesOnlyWhileItsProbeSucceeds(t *testing.T) {
	const never = "the pod listens on port 6379, but its readinessProbe did not succeed within 1m0s: httpGet: status 503"
	const late = "the pod did not start in time: startupProbe: status 503"
	listens := append(toNet[:3:3],
		did{0.08, Unready{1, at(0.08), "", false}, Waking, ""},
		did{1, Unready{1, 0, "httpGet: status 503", false}, Waking, ""})
	fails := append(toWarm[:4:4], did{10, Unready{1, 0, "httpGet: status 503", false}, Warm, "publish 3 1:starting | " +
		"warn: a pod gets no new connections: its readinessProbe fails: httpGet: status 503"})
	for name, c := range map[string]struct{ way, rest []did }{
		"it becomes ready": {listens, []did{
			{2, Listening{Ref: 1, At: at(2)}, Warm, "publish 2 1:serving | timer never | " +
				"info: warm: is ready 2000.000 ms after the SYN"}}},
		"it never becomes ready": {listens, []did{
			{60, Timer{}, Failed, "publish 2 | refuse: " + never + " | stop 1 30s | timer never | " +
				"error: wake failed: " + never}}},
		"it never starts": {listens, []did{
			{2, Unready{1, 0, "startupProbe: status 503", true}, Failed, "publish 2 | refuse: " + late + " | stop 1 30s | " +
				"timer never | error: wake failed: " + late},
			{2.1, Exited{1, 0, ""}, Failed, ""}}},
		"it never starts after the controller has changed": {[]did{
			{0, Adopted{Ref: 1}, Warm, "publish 1 1:starting | info: warm: its pod was found running"}}, []did{
			{2, Unready{1, 0, "startupProbe: status 503", true}, Cold, "publish 2 1:draining | stop 1 30s | " +
				"error: crashed: " + late + "; the next connection request wakes it again"}}},
		"it fails, and comes back": {fails, []did{
			{11, WakeAsked{Parked: 1}, Warm, "publish 4 1:starting | timer 1m11s"},
			{12, Unready{1, 0, "httpGet: status 500", false}, Warm, ""},
			{13, Listening{Ref: 1, At: at(13)}, Warm, "publish 5 1:serving | timer never"}}},
		"it fails, and clients give up": {fails, []did{
			{11, WakeAsked{Parked: 1}, Warm, "publish 4 1:starting | timer 1m11s"},
			{71, Timer{}, Warm, "refuse: " + never + " | timer never | error: clients are refused: " + never},
			{72, WakeAsked{Parked: 1}, Warm, "publish 5 1:starting | timer 2m12s"},
			{73, Listening{Ref: 1, At: at(73)}, Warm, "publish 6 1:serving | timer never"}}},
		"it fails, and sleeps": {fails, []did{
			{300, IdleSeen{LastPacket: at(0)}, Stopping, "publish 4 1:draining | timer 5m5s"},
			{300.1, Unready{1, 0, "late", false}, Stopping, ""},
			{300.2, Quiet{1, 4, at(0), 0}, Stopping, "stop 1 30s | timer never"},
			{301, StopDone{1}, Cold, "publish 5 | info: sleeps"}}},
		"it fails, and crashes": {fails, []did{
			{11, Exited{1, 2, ""}, Cold, "publish 4 1:draining | stop 1 0s | " +
				"error: crashed: process exited with code 2; the next connection request wakes it again"}}},
	} {
		t.Run(name, func(t *testing.T) { walk(t, testSpec, c.way, c.rest) })
	}
}

func TestWaterfallTellsWhenThePodWasReady(t *testing.T) {
	m := New(testSpec, 0)
	var last Waterfall
	for _, d := range append(toNet[:3:3],
		did{0, Unready{1, at(0.08), "", false}, 0, ""}, did{0, Listening{Ref: 1, At: at(0.5)}, 0, ""}) {
		for _, a := range m.Step(d.ev, at(d.at)) {
			if r, ok := a.(Record); ok {
				last = r.Waterfall
			}
		}
	}
	listening, _ := last.At(PhaseListening)
	ready, ok := last.At(PhaseReady)
	if listening != at(0.08).Sub(t0) || ready != at(0.5).Sub(t0) || !ok {
		t.Errorf("listening after %v, ready after %v (%t)", listening, ready, ok)
	}
	if answer, ok := m.Unready(1); ok {
		t.Errorf("it serves, and is not ready: %s", answer)
	}
}
