// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"testing"
	"time"
)

// No pod starts until nothing of its predecessor is left, whatever asks for one.
func TestSinglePodStartsOnlyOnceTheOneBeforeItIsGone(t *testing.T) {
	spec := testSpec
	spec.Single, spec.Volume, spec.Max = true, "data", 1
	other := spec
	other.Port, other.WakeTimeout = 6380, 5*time.Second
	const stays = `the previous pod does not end, and may still write volume "data": waited `
	for name, c := range map[string]struct{ way, rest []did }{
		"a wake timed out": {toNet, []did{
			{60, Timer{}, Failed, "publish 2 | refuse: process runs but nothing listens on port 6379 for IPv4 after 1m0s: " +
				"check spec.targetPort, and that the process listens on 0.0.0.0 or [::], " +
				"not on 127.0.0.1 or for IPv6 only | stop 1 30s | timer never | " +
				"error: wake failed: process runs but nothing listens on port 6379 for IPv4 after 1m0s: " +
				"check spec.targetPort, and that the process listens on 0.0.0.0 or [::], not on 127.0.0.1 or for IPv6 only"},
			{61, WakeAsked{Parked: 1}, Waking, "timer 2m31s | info: wakes: 1 connection request parked"},
			{62, StopDone{1}, Waking, "start 2 | timer 2m2s"}}},
		"crash": {toWarm, []did{
			{9, Exited{1, 2, "panic"}, Cold, "publish 3 1:draining | stop 1 0s | " +
				"error: crashed: process exited with code 2: panic; the next connection request wakes it again"},
			{9, WakeAsked{Parked: 1}, Waking, "timer 1m39s | info: wakes: 1 connection request parked"},
			{9.1, StopDone{1}, Waking, "start 2 | publish 4 | timer 1m9.1s"}}},
		"a client comes while it stops": {toTerm, []did{
			{300.5, WakeAsked{Parked: 1}, Stopping, "timer 6m30.5s"},
			{300.6, WakeAsked{Parked: 4}, Stopping, ""},
			{301, Exited{1, 0, ""}, Waking, "timer 6m31s | info: sleeps | info: wakes: 4 connection requests parked"},
			{301.1, StopDone{1}, Waking, "start 2 | publish 4 | timer 6m1.1s"}}},
		"it does not end": {toTerm, []did{
			{300.5, WakeAsked{Parked: 1}, Stopping, "timer 6m30.5s"},
			{390.5, Timer{}, Stopping, "refuse: " + stays + "1m30s | timer never | error: wake failed: " + stays + "1m30s"},
			{391, WakeAsked{Parked: 1}, Stopping, "timer 8m1s"},
			{400, StopDone{1}, Waking, "start 2 | publish 4 | timer 7m40s | info: sleeps | " +
				"info: wakes: 1 connection request parked"}}},
		"its user put it to sleep": {toSlept, []did{
			{5.001, WakeAsked{Parked: 1}, Stopping, ""},
			{5.002, Quiet{1, 3, at(4.99), 7}, Stopping, "stop 1 30s | timer 1m35.001s"},
			{6, StopDone{1}, Waking, "start 2 | publish 4 | timer 1m6s | info: sleeps | " +
				"info: wakes: 1 connection request parked"}}},
		"the manifest changed during a wake": {toNet, []did{
			{1, SpecChanged{other, true}, Waking, "publish 2 | stop 1 30s | timer 36s | " +
				"info: the manifest changed: the wake begins again"},
			{2, StopDone{1}, Waking, "start 2 | timer 7s"}}},
		"the manifest changed during a wake, and it does not end": {toNet, []did{
			{1, SpecChanged{other, true}, Waking, "publish 2 | stop 1 30s | timer 36s | " +
				"info: the manifest changed: the wake begins again"},
			{36, Timer{}, Failed, "refuse: " + stays + "35s | timer never | error: wake failed: " + stays + "35s"}}},
		"the manifest changed": {toWarm, []did{
			{10, SpecChanged{spec, true}, Waking, "publish 3 1:draining | timer 15s | " +
				"info: the manifest changed: the pod ends before the new one starts"},
			{10.001, Quiet{1, 3, at(10), 7}, Waking, "stop 1 30s | timer 1m45s"},
			{10.1, WakeAsked{Parked: 1}, Waking, ""},
			{11, Exited{1, 0, ""}, Waking, ""},
			{11.1, StopDone{1}, Waking, "start 2 | publish 4 | timer 1m11.1s"},
			{11.2, NetworkReady{2}, Waking, "publish 5 2:starting"},
			{11.3, Listening{Ref: 2, At: at(11.3)}, Warm, "publish 6 2:serving | timer never | info: warm"}}},
		"the manifest changed, and no gate answers": {toWarm, []did{
			{10, SpecChanged{spec, true}, Waking, "publish 3 1:draining | timer 15s | " +
				"info: the manifest changed: the pod ends before the new one starts"},
			{15, Timer{}, Waking, "stop 1 30s | timer 1m45s"},
			{16, StopDone{1}, Waking, "start 2 | publish 4 | timer 1m16s"}}},
		"its node is silent, and comes back": {toWarm, []did{
			{10, Away{1}, Waking, "publish 3 1:draining | timer 1m40s | warn: the node of a pod is silent: the pod gets no " +
				"new connections | info: starts 1 pod: the node of its last pod is silent"},
			{20, WakeAsked{Parked: 1}, Waking, ""},
			{100, Timer{}, Failed, "refuse: " + stays + "1m30s | timer never | error: wake failed: " + stays + "1m30s"},
			{101, WakeAsked{Parked: 1}, Waking, "timer 3m11s | info: wakes: 1 connection request parked"},
			{102, Back{1}, Waking, "publish 4 1:starting"},
			{102.1, Listening{Ref: 1, At: at(102.1)}, Warm, "publish 5 1:serving | timer never | " +
				"info: warm: listens 1100.000 ms after the SYN"}}},
		"it is removed from outside": {toWarm, []did{
			{10, Leaving{Ref: 1}, Waking, "publish 3 1:draining | timer 1m40s | " +
				"info: a pod is being removed from outside: it is drained | info: starts 1 pod: its last pod is being removed"},
			{12, StopDone{1}, Waking, "start 2 | publish 4 | timer 1m12s"}}},
		"a start failed": {toWaking, []did{
			{1, StartFailed{1, errors.New("not available"), true}, Waking,
				"timer 1.1s | warn: start failed, tried again in 100ms: not available"},
			{1.1, Timer{}, Waking, "start 2 | timer 1m0s"}}},
	} {
		t.Run(name, func(t *testing.T) { walk(t, spec, c.way, c.rest) })
	}
}

// A silent node is reported in every state of the service, until it is back or the pod is known to be gone.
func TestPodOfASilentNodeIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		way    []did
		single bool
		next   []did
		want   []bool // after each of next
	}{
		"it served": {toWarm, true, []did{
			{at: 10, ev: Away{1}}, {at: 11, ev: WakeAsked{Parked: 1}}, {at: 100, ev: Timer{}}, {at: 101, ev: Back{1}},
		}, []bool{true, true, true, false}},
		"it was ending": {toTerm, true, []did{
			{at: 301, ev: Away{1}}, {at: 400, ev: StopDone{1}},
		}, []bool{true, false}},
		"it started": {toNet, true, []did{
			{at: 1, ev: Away{1}}, {at: 2, ev: StartFailed{Ref: 1}},
		}, []bool{true, false}},
		"others may run beside it": {toWarm, false, []did{{at: 10, ev: Away{1}}}, []bool{false}},
		"its service was deleted": {toWarm, true, []did{
			{at: 10, ev: Away{1}}, {at: 11, ev: Deleted{}},
		}, []bool{true, false}},
	} {
		spec := testSpec
		spec.Single = c.single
		m := New(spec, 0)
		for _, d := range c.way {
			m.Step(d.ev, at(d.at))
		}
		for i, d := range c.next {
			m.Step(d.ev, at(d.at))
			if r, lost := m.Lost(); lost != c.want[i] || lost && r != 1 {
				t.Errorf("%s, after %T: lost %d (%t), want %t", name, d.ev, r, lost, c.want[i])
			}
		}
	}
}

func TestWaitForThePreviousPodIsTold(t *testing.T) {
	spec := testSpec
	spec.Single, spec.Volume = true, "data"
	m := New(spec, 0)
	waits := func(want Ref) {
		t.Helper()
		if r, ok := m.WaitsFor(); r != want || ok != (want != 0) {
			t.Fatalf("waits for %d (%t), want %d", r, ok, want)
		}
	}
	for i, d := range toTerm {
		m.Step(d.ev, at(d.at))
		if r, ok := m.WaitsFor(); ok {
			t.Fatalf("step %d: waits for %d", i, r)
		}
	}
	m.Step(WakeAsked{Parked: 1}, at(300.5))
	waits(1)
	m.Step(Exited{Ref: 1}, at(301))
	waits(1)
	m.Step(StopDone{1}, at(301.1))
	waits(0)
}
