// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// specOf returns testSpec with a change.
func specOf(change func(*Spec)) Spec {
	s := testSpec
	change(&s)
	return s
}

var (
	upTo4 = specOf(func(s *Spec) { s.Max, s.DrainTimeout = 4, 10*time.Second })
	burst = specOf(func(s *Spec) { s.Max, s.BurstPerPod = 3, 10 })
	rolls = specOf(func(s *Spec) { s.Max, s.Rolls = 4, true })
	least = specOf(func(s *Spec) { s.Min, s.Max = 2, 4 })
)

// The steps into states with several pods.
var (
	toThree = append(toWarm[:4:4],
		did{1, Scale{3, "load"}, Warm, "start 2 | start 3 | timer 1m1s | info: scaled from 1 to 3: load"},
		did{1.1, NetworkReady{2}, Warm, "publish 3 1:serving 2:starting"},
		did{1.2, Listening{Ref: 2, At: at(1.2)}, Warm, "publish 4 1:serving 2:serving | info: 2 pods serve"},
		did{1.3, Listening{Ref: 3, At: at(1.3)}, Warm,
			"publish 5 1:serving 2:serving 3:serving | timer never | info: 3 pods serve"},
		did{2, FlowsSeen{Ref: 1, Open: 5}, Warm, ""}, did{2, FlowsSeen{Ref: 2, Open: 1}, Warm, ""},
		did{2, FlowsSeen{Ref: 3, Open: 9}, Warm, ""})
	toAllDrain = append(toThree[:len(toThree):len(toThree)],
		did{300, IdleSeen{LastPacket: at(5), Of: map[Ref]monotime.Time{2: at(4)}}, Stopping, "publish 6 1:draining " +
			"2:draining 3:draining | timer 5m5s"})
)

func TestServiceWithSeveralPodsStepsThroughItsStates(t *testing.T) {
	cases := map[string]struct {
		spec      Spec
		way, rest []did
	}{
		"scale in: the fewest flows": {upTo4, toThree, []did{
			{3, Scale{2, "less load"}, Warm, "publish 6 1:serving 2:draining 3:serving | timer 13s | " +
				"info: scaled from 3 to 2: less load"},
			{3.1, FlowsSeen{Ref: 2, Open: 0}, Warm, ""}, // may be older than the drain
			{3.2, Quiet{2, 6, at(3), 1}, Warm, ""},
			{4, FlowsSeen{Ref: 2, Open: 0}, Warm, "stop 2 30s | timer never"},
			{5, StopDone{2}, Warm, "publish 7 1:serving 3:serving"}}},
		"scale in, and out again while it drains": {upTo4, toThree, []did{
			{3, Scale{1, "x"}, Warm, "publish 6 1:draining 2:draining 3:serving | timer 13s | info: scaled from 3 to 1: x"},
			{4, Quiet{1, 6, at(3), 0}, Warm, "stop 1 30s"},
			{5, Scale{3, "y"}, Warm, "start 4 | publish 7 1:draining 2:serving 3:serving | timer 1m5s | " +
				"info: scaled from 1 to 3: y"},
			{6, FlowsSeen{Ref: 2, Open: 0}, Warm, ""}, {6, Quiet{2, 6, at(3), 0}, Warm, ""}}},
		"scale in: flows do not end": {upTo4, toThree, []did{
			{3, Scale{2, "x"}, Warm, "publish 6 1:serving 2:draining 3:serving | timer 13s | info: scaled from 3 to 2: x"},
			{13, Timer{}, Warm, "stop 2 30s | timer never"}}},
		"scale in: one that starts goes first, the youngest": {upTo4, toWarm, []did{
			{1, Scale{3, "load"}, Warm, "start 2 | start 3 | timer 1m1s | info: scaled from 1 to 3: load"},
			{2, Scale{2, ""}, Warm, "stop 3 30s | info: scaled from 3 to 2: "}}},
		"scale: bounded, and the same number is no change": {upTo4, toThree, []did{
			{3, Scale{9, "x"}, Warm, "start 4 | timer 1m3s | info: scaled from 3 to 4: x"},
			{3, Scale{4, "x"}, Warm, ""}}},
		"scale to zero": {upTo4, toThree, []did{
			{3, Scale{0, "a user"}, Stopping, "publish 6 1:draining 2:draining 3:draining | timer 8s"},
			{3.1, Quiet{1, 6, at(3.05), 5}, Stopping, ""},
			{3.1, Quiet{2, 6, at(3.05), 1}, Stopping, ""},
			{3.2, Quiet{3, 6, at(3.05), 9}, Stopping, "stop 1 30s | stop 2 30s | stop 3 30s | timer never"},
			{4, Exited{1, 143, ""}, Stopping, ""}, {4, StopDone{3}, Stopping, "publish 7 1:draining 2:draining"},
			{5, StopDone{2}, Cold, "publish 8 1:draining | info: sleeps"}}},
		"scale from zero": {upTo4, nil, []did{
			{0, Scale{2, "a user"}, Waking, "start 1 | start 2 | timer 1m0s | info: starts 2 pods: scaled to 2: a user"},
			{1, WakeAsked{Parked: 1}, Waking, ""},
			{2, Listening{Ref: 2, At: at(2)}, Warm, "publish 1 2:serving | info: warm"}}},
		"scale while it ends: the next wake has that many": {upTo4, toTerm, []did{
			{301, Scale{2, "a user"}, Waking, "start 2 | start 3 | timer 6m1s | info: sleeps | " +
				"info: starts 2 pods: scaled to 2: a user"},
			{302, StopDone{1}, Waking, "publish 4"}}},
		"idle: all are quiet": {upTo4, toAllDrain, []did{
			{301, Quiet{3, 6, at(5), 0}, Stopping, ""}, {301, Quiet{1, 6, at(5), 0}, Stopping, ""},
			{301, Quiet{2, 6, at(4), 0}, Stopping, "stop 1 30s | stop 2 30s | stop 3 30s | timer never"}}},
		"idle: a packet on one of them, by its own clock": {upTo4, toAllDrain, []did{
			{301, Quiet{3, 6, at(5), 0}, Stopping, ""},
			{301, Quiet{2, 6, at(4.5), 0}, Warm, "publish 7 1:serving 2:serving 3:serving | timer never | " +
				"info: stays awake: a packet came"}}},
		"idle: a client comes": {upTo4, toAllDrain, []did{
			{301, Quiet{3, 6, at(5), 0}, Stopping, ""},
			{301, WakeAsked{Parked: 1}, Warm, "publish 7 1:serving 2:serving 3:serving | timer never | " +
				"info: stays awake: a new client came"}}},
		"idle: one ends by itself": {upTo4, toAllDrain, []did{
			{301, Exited{1, 0, ""}, Stopping, "stop 1 0s | warn: ended while it was drained: process exited with code 0"},
			{301, Quiet{2, 6, at(4), 0}, Stopping, ""},
			{301, Quiet{3, 6, at(5), 0}, Stopping, "stop 2 30s | stop 3 30s | timer never"}}},
		"one of several crashes, again and again": {upTo4, toThree, []did{
			{10, Exited{1, 1, "oh"}, Warm, "start 4 | publish 6 1:draining 2:serving 3:serving | stop 1 0s | timer 1m10s | " +
				"error: a pod crashed: process exited with code 1: oh; the others continue to serve"},
			{11, Exited{4, 1, ""}, Warm, "stop 4 0s | timer 12s | warn: a new pod does not serve: process exited with code 1"},
			{12, Timer{}, Warm, "start 5 | timer 1m12s"},
			{13, StartFailed{5, errors.New("no room"), false}, Warm, "timer 15s | warn: a new pod does not serve: no room"},
			{20, Scale{2, "load"}, Warm, "timer never | info: scaled from 3 to 2: load"}}},
		"all crash": {upTo4, toThree, []did{
			{10, Exited{1, 1, ""}, Warm, "start 4 | publish 6 1:draining 2:serving 3:serving | stop 1 0s | timer 1m10s | " +
				"error: a pod crashed: process exited with code 1; the others continue to serve"},
			{10, Exited{2, 1, ""}, Warm, "publish 7 1:draining 2:draining 3:serving | stop 2 0s | timer 11s | " +
				"error: a pod crashed: process exited with code 1; the others continue to serve"},
			{10, Exited{3, 1, ""}, Waking, "publish 8 1:draining 2:draining 3:draining | stop 3 0s | " +
				"error: lost its pod while the replacement starts: process exited with code 1"}}},
		"a new one never listens": {upTo4, toWarm, []did{
			{1, Scale{2, "load"}, Warm, "start 2 | timer 1m1s | info: scaled from 1 to 2: load"},
			{61, Timer{}, Warm, "start 3 | stop 2 30s | timer 2m1s | warn: a new pod does not serve: no process after 1m0s: " +
				"its start has not come to its network"}}},
		"update: one after the other": {upTo4, toThree, []did{
			{10, SpecChanged{upTo4, true}, Warm, "start 4 | timer 16m10s | " +
				"info: the manifest changed: a new pod starts, the old one serves until it listens"},
			{11, Listening{Ref: 4, At: at(11)}, Warm, "publish 6 1:serving 2:draining 3:serving 4:serving | timer 21s | " +
				"info: the new pod serves; the old one is drained"},
			{12, Quiet{2, 6, at(11), 0}, Warm, "stop 2 30s | timer never"},
			{13, StopDone{2}, Warm, "start 5 | publish 7 1:serving 3:serving 4:serving | timer 16m13s | " +
				"info: the manifest changed: a new pod starts, the old one serves until it listens"},
			{14, Listening{Ref: 5, At: at(14)}, Warm, "publish 8 1:draining 3:serving 4:serving 5:serving | timer 24s | " +
				"info: the new pod serves; the old one is drained"}}},
		"limits change": {upTo4, toThree, []did{
			{10, SpecChanged{testSpec, false}, Warm, "publish 6 1:draining 2:draining 3:serving | timer 40s | " +
				"info: scaled from 3 to 1: the manifest changed its limits"}}},

		"burst": {burst, nil, []did{
			{0, WakeAsked{Parked: 11}, Waking, "start 1 | start 2 | timer 1m0s | info: wakes: 11 connection requests parked"},
			{1, WakeAsked{Parked: 99}, Waking, "start 3"},
			{2, StartFailed{1, errors.New("no room"), false}, Waking, "warn: lost one of the starting pods: no room"},
			{3, Listening{Ref: 3, At: at(3)}, Warm,
				"publish 1 3:serving shared by 2 | info: warm: listens 3000.000 ms after the SYN"}}},
		"burst: the pods that share the parked SYNs": {burst, nil, []did{
			{0, WakeAsked{Parked: 1}, Waking, "start 1 | timer 1m0s | info: wakes: 1 connection request parked"},
			{1, NetworkReady{1}, Waking, "publish 1 1:starting"},
			{2, WakeAsked{Parked: 29}, Waking, "start 2 | start 3 | publish 2 1:starting shared by 3"},
			{3, Listening{Ref: 1, At: at(3)}, Warm,
				"publish 3 1:serving shared by 3 | info: warm: listens 3000.000 ms after the SYN"},
			{4, StartFailed{2, errors.New("no room"), false}, Warm, "start 4 | publish 4 1:serving shared by 2 | " +
				"warn: a new pod does not serve: no room"},
			{5, NetworkReady{3}, Warm, "publish 5 1:serving 3:starting shared by 2"},
			{6, Listening{Ref: 3, At: at(6)}, Warm, "publish 6 1:serving 3:serving | timer 1m4s | info: 2 pods serve"}}},
		"burst: no client waits for a pod that was started later": {burst, nil, []did{
			{0, WakeAsked{Parked: 11}, Waking, "start 1 | start 2 | timer 1m0s | info: wakes: 11 connection requests parked"},
			{1, Listening{Ref: 1, At: at(1)}, Warm,
				"publish 1 1:serving shared by 2 | info: warm: listens 1000.000 ms after the SYN"},
			{2, Exited{2, 1, ""}, Warm, "start 3 | publish 2 1:serving | stop 2 0s | timer 1m2s | " +
				"warn: a new pod does not serve: process exited with code 1"}}},
		"scaled, not woken by a crowd: no client waits": {upTo4, nil, []did{
			{0, Scale{3, "a user"}, Waking, "start 1 | start 2 | start 3 | timer 1m0s | " +
				"info: starts 3 pods: scaled to 3: a user"},
			{1, NetworkReady{1}, Waking, "publish 1 1:starting"}}},
		"burst: none starts": {burst, nil, []did{
			{0, WakeAsked{Parked: 11}, Waking, "start 1 | start 2 | timer 1m0s | info: wakes: 11 connection requests parked"},
			{2, StartFailed{1, errors.New("no image"), false}, Waking, "warn: lost one of the starting pods: no image"},
			{2, StartFailed{2, errors.New("no image"), false}, Failed, "refuse: no image | timer never | " +
				"error: wake failed: no image"}}},
		"burst: none listens": {burst, nil, []did{
			{0, WakeAsked{Parked: 11}, Waking, "start 1 | start 2 | timer 1m0s | info: wakes: 11 connection requests parked"},
			{2, Started{1}, Waking, "publish 1 1:starting shared by 2"},
			{60, Timer{}, Failed, "publish 2 | refuse: process runs but nothing listens on port 6379 for IPv4 after 1m0s: " +
				"check spec.targetPort, and that the process listens on 0.0.0.0 or [::], " +
				"not on 127.0.0.1 or for IPv6 only | stop 1 30s | stop 2 30s | " +
				"timer never | " +
				"error: wake failed: process runs but nothing listens on port 6379 for IPv4 after 1m0s: " +
				"check spec.targetPort, and that the process listens on 0.0.0.0 or [::], not on 127.0.0.1 or for IPv6 only"}}},

		"at least two: from the start, and idle": {least, nil, []did{
			{0, Timer{}, Waking, "start 1 | start 2 | timer 1m0s | info: starts 2 pods: at least 2 pods wanted"},
			{1, Listening{Ref: 1, At: at(1)}, Warm, "publish 1 1:serving | info: warm"},
			{1, Listening{Ref: 2, At: at(1)}, Warm, "publish 2 1:serving 2:serving | timer never | info: 2 pods serve"},
			{300, IdleSeen{LastPacket: at(1)}, Warm, ""},
			{301, Scale{3, "load"}, Warm, "start 3 | timer 6m1s | info: scaled from 2 to 3: load"},
			{302, Listening{Ref: 3, At: at(302)}, Warm,
				"publish 3 1:serving 2:serving 3:serving | timer never | info: 3 pods serve"},
			{900, IdleSeen{LastPacket: at(1)}, Warm, "publish 4 1:serving 2:serving 3:draining | timer 15m30s | " +
				"info: scaled from 3 to 2: it is not used"},
			{901, Scale{0, "a user"}, Warm, ""}}},
		"at least two: a wake that fails is tried again": {least, nil, []did{
			{0, Timer{}, Waking, "start 1 | start 2 | timer 1m0s | info: starts 2 pods: at least 2 pods wanted"},
			{1, StartFailed{1, errors.New("no image"), false}, Waking, "warn: lost one of the starting pods: no image"},
			{1, StartFailed{2, errors.New("no image"), false}, Waking, "start 3 | start 4 | refuse: no image | timer 1m1s | " +
				"error: wake failed: no image | info: starts 2 pods: at least 2 pods wanted"},
			{2, StartFailed{3, errors.New("no image"), false}, Waking, "warn: lost one of the starting pods: no image"},
			{2, StartFailed{4, errors.New("no image"), false}, Failed, "refuse: no image | timer 3s | " +
				"error: wake failed: no image; not tried again for 1s"},
			{3, Timer{}, Waking, "start 5 | start 6 | timer 1m3s | info: starts 2 pods: at least 2 pods wanted"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { walk(t, c.spec, c.way, c.rest) })
	}
}

func TestPodsComeAndGoFromOutsideOnACluster(t *testing.T) {
	cases := map[string]struct{ way, rest []did }{
		"rollout": {toWarm, []did{
			{10, SpecChanged{rolls, true}, Warm, ""},
			{11, Appeared{2}, Warm, "publish 3 1:serving 2:starting | timer 14s"},
			{14, Timer{Rolling: true}, Warm, "timer 17s"},
			{100, Timer{Rolling: true}, Warm, "timer 1m43s"}, // it takes as long as it takes
			{101, Listening{Ref: 2, At: at(101)}, Warm, "publish 4 1:serving 2:serving | info: 2 pods serve"},
			{102, Leaving{Ref: 1}, Warm, "publish 5 1:draining 2:serving | timer 3m12s | " +
				"info: a pod is being removed from outside: it is drained"},
			{103, Quiet{1, 5, at(102), 0}, Warm, ""}, // others end it
			{130, Exited{1, 143, ""}, Warm, "stop 1 0s | timer never"},
			{131, StopDone{1}, Warm, "publish 6 2:serving"}}},
		"it is evicted": {toWarm, []did{
			{10, Leaving{1, "pod p was evicted"}, Waking, "start 2 | publish 3 1:draining | timer 1m10s | " +
				"info: pod p was evicted: it is drained | info: starts 1 pod: its last pod is being removed"}}},
		"the last one is removed from outside": {toWarm, []did{
			{10, Leaving{Ref: 1}, Waking, "start 2 | publish 3 1:draining | timer 1m10s | " +
				"info: a pod is being removed from outside: it is drained | info: starts 1 pod: its last pod is being removed"},
			{11, WakeAsked{Parked: 1}, Waking, ""},
			{12, NetworkReady{2}, Waking, "publish 4 1:draining 2:starting"},
			{12, Exited{1, 143, ""}, Waking, "stop 1 0s"},
			{12, StopDone{1}, Waking, "publish 5 2:starting"},
			{13, Listening{Ref: 2, At: at(13)}, Warm, "publish 6 2:serving | timer never | info: warm"}}},
		"the last one is removed from outside, and its successor is there already": {toWarm, []did{
			{9, Appeared{2}, Warm, "publish 3 1:serving 2:starting | timer 12s"},
			{10, Leaving{Ref: 1}, Waking, "publish 4 1:draining 2:starting | timer 1m10s | " +
				"info: a pod is being removed from outside: it is drained | " +
				"info: waits for the pod that is starting: its last pod is being removed"},
			{13, Listening{Ref: 2, At: at(13)}, Warm, "publish 5 1:draining 2:serving | timer 1m40s | info: warm"}}},
		"one that starts is removed from outside": {toNet, []did{
			{1, Leaving{Ref: 1}, Waking, "start 2 | publish 2"},
			{2, Exited{1, 0, ""}, Waking, "stop 1 0s"},
			{3, StopDone{1}, Waking, ""}}},
		"one that is drained for sleep is removed from outside": {toDrain, []did{
			{301, Leaving{Ref: 1}, Stopping, ""},
			{302, Quiet{1, 3, at(0), 0}, Stopping, "stop 1 30s | timer never"},
			{303, StopDone{1}, Cold, "publish 4 | info: sleeps"}}},
		"a client comes while the last one ends": {toTerm, []did{
			{301, WakeAsked{Parked: 1}, Waking, "start 2 | timer 6m1s | info: sleeps | " +
				"info: wakes: 1 connection request parked"},
			{302, Listening{Ref: 2, At: at(302)}, Warm, "publish 4 1:draining 2:serving | timer never | " +
				"info: warm: listens 1000.000 ms after the SYN"},
			{303, StopDone{1}, Warm, "publish 5 2:serving"}}},
		"a pod is started from outside": {nil, []did{
			{0, Appeared{1}, Waking, "publish 1 1:starting | timer 1m0s | info: starts 1 pod: a pod was started from outside"},
			{1, Listening{Ref: 1, At: at(1)}, Warm, "publish 2 1:serving | timer never | info: warm"}}},
		"one too many appears": {toWarm, []did{
			{10, Appeared{2}, Warm, "publish 3 1:serving 2:starting | timer 13s"},
			{11, Listening{Ref: 2, At: at(11)}, Warm, "publish 4 1:serving 2:serving | info: 2 pods serve"},
			{11, FlowsSeen{Ref: 1, Open: 5}, Warm, ""},
			{12, Timer{}, Warm, ""},
			{13, Timer{}, Warm, "publish 5 1:serving 2:draining | timer 43s | info: 1 pod too many: scaled in again"},
			{14, Quiet{2, 5, at(13), 0}, Warm, "stop 2 30s | timer never"}, {15, StopDone{2}, Warm, "publish 6 1:serving"}}},
		"one too many appears, and is wanted after all": {toWarm, []did{
			{10, Appeared{2}, Warm, "publish 3 1:serving 2:starting | timer 13s"},
			{11, Scale{2, "load"}, Warm, "timer never | info: scaled from 1 to 2: load"}, {13, Timer{}, Warm, ""}}},
		"a pod appears while it goes to sleep": {toTerm, []did{
			{301, Appeared{2}, Stopping, "stop 2 30s"}, {302, StopDone{1}, Stopping, "publish " +
				"4"}, {303, StopDone{2}, Cold, "info: sleeps"}}},
		"a node is silent, then back": {toWarm, []did{
			{10, Away{1}, Waking, "start 2 | publish 3 1:draining | timer 1m10s | " +
				"warn: the node of a pod is silent: the pod gets no new connections | " +
				"info: starts 1 pod: the node of its last pod is silent"},
			{11, Listening{Ref: 2, At: at(11)}, Warm, "publish 4 1:draining 2:serving | timer never | info: warm"},
			{20, Back{1}, Warm, "publish 5 1:draining 2:serving | timer 50s"},
			{21, Quiet{1, 5, at(20), 0}, Warm, "stop 1 30s | timer never"}}},
		"a node is back before another pod serves": {toWarm, []did{
			{10, Away{1}, Waking, "start 2 | publish 3 1:draining | timer 1m10s | " +
				"warn: the node of a pod is silent: the pod gets no new connections | " +
				"info: starts 1 pod: the node of its last pod is silent"},
			{11, Back{1}, Waking, "publish 4 1:starting | stop 2 30s"},
			{12, Listening{Ref: 1, At: at(12)}, Warm, "publish 5 1:serving | timer never | info: warm"}}},
		"the node of a starting pod is silent": {toNet, []did{
			{1, Away{1}, Waking, "start 2"},
			{2, StartFailed{1, errors.New("gone"), false}, Waking, "publish 2"},
			{3, Listening{Ref: 2, At: at(3)}, Warm, "publish 3 2:serving | timer never | " +
				"info: warm: listens 3000.000 ms after the SYN"}}},
		"a leaving pod is adopted, and others": {nil, []did{
			{0, Adopted{Ref: 1, Leaving: true}, Cold, "publish 1 1:draining | timer 1m30s"},
			{0, Adopted{Ref: 2}, Warm, "publish 2 1:draining 2:starting | info: warm: its pod was found running"},
			{1, Listening{Ref: 2, At: at(1)}, Warm, "publish 3 1:draining 2:serving"},
			{2, Leaving{Ref: 1}, Warm, ""}, {2, Quiet{1, 1, at(1), 0}, Warm, ""},
			{3, Exited{1, 143, ""}, Warm, "stop 1 0s | timer never"},
			{4, StopDone{1}, Warm, "publish 4 2:serving"}}},
		"several are adopted": {nil, []did{
			{0, Adopted{Ref: 1}, Warm, "publish 1 1:starting | info: warm: its pod was found running"},
			{0, Adopted{Ref: 2}, Warm, "publish 2 1:starting 2:starting | info: one more of its pods was found running"},
			{1, Listening{Ref: 2, At: at(1)}, Warm, "publish 3 1:starting 2:serving"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { walk(t, rolls, c.way, c.rest) })
	}
}

func TestStartThatFailsAfterThePodListenedLeavesNothing(t *testing.T) {
	down := errors.New("runtime not available")
	walk(t, testSpec, toWarm, []did{
		{1, StartFailed{1, down, true}, Cold, "publish 3 1:draining | stop 1 30s | " +
			"error: crashed: its start failed although it listened: runtime not available; the next connection request wakes " +
			"it again"},
		{2, WakeAsked{Parked: 1}, Waking, "start 2 | timer 1m2s | info: wakes: 1 connection request parked"},
		{3, StopDone{1}, Waking, "publish 4"},
	})
}

// The controller may learn that the pod listened after a user has put the service to sleep.
func TestWakeSucceedsIfThePodListenedBeforeSleepWasAsked(t *testing.T) {
	for _, c := range []struct {
		name     string
		listened float64
		want     Result
	}{{"before", 0.9, ResultWarm}, {"after", 1.5, ResultCancelled}} {
		t.Run(c.name, func(t *testing.T) {
			var ring Ring
			m := New(testSpec, 0)
			for _, d := range append(toNet[:3:3],
				did{at: 1, ev: SleepAsked{}}, did{at: 2, ev: Listening{Ref: 1, At: at(c.listened)}}, did{at: 3, ev: StopDone{1}}) {
				for _, a := range m.Step(d.ev, at(d.at)) {
					if r, ok := a.(Record); ok {
						ring.Put(r)
					}
				}
			}
			if w := ring.Wakes("")[0]; w.Result != c.want {
				t.Errorf("the wake ended as %s, want %s: %+v", w.Result, c.want, w)
			}
		})
	}
}

func TestWaterfallOfABurstFollowsThePodThatListensFirst(t *testing.T) {
	var ring Ring
	m := New(burst, 0)
	for _, d := range []did{
		{at: 0, ev: WakeAsked{Parked: 20}},
		{at: 1, ev: PhaseEnded{1, PhaseImage, at(1)}}, {at: 2, ev: PhaseEnded{2, PhaseImage, at(2)}},
		{at: 3, ev: PhaseEnded{2, PhaseStarted, at(3)}},
		{at: 4, ev: Listening{Ref: 2, At: at(4)}}, {at: 5, ev: Listening{Ref: 1, At: at(5)}},
		{at: 6, ev: Trace{Ref: 2, Released: at(4.5), ReleasedN: 20}},
		{at: 6, ev: Trace{Ref: 1, Released: at(5.5), ReleasedN: 1}},
	} {
		for _, a := range m.Step(d.ev, at(d.at)) {
			if r, ok := a.(Record); ok {
				ring.Put(r)
			}
		}
	}
	w := ring.Wakes("")[0]
	for phase, want := range map[PhaseName]time.Duration{PhaseImage: 2 * time.Second, PhaseStarted: 3 * time.Second,
		PhaseListening: 4 * time.Second, PhaseReleased: 4500 * time.Millisecond} {
		if got, ok := w.At(phase); !ok || got != want {
			t.Errorf("%s at %v (%v), want %v", phase, got, ok, want)
		}
	}
	if w.Result != ResultWarm || w.Released != 20 {
		t.Errorf("%+v", w)
	}
}
