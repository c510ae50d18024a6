// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

const t0 = monotime.Time(1000e9)

var testSpec = Spec{Name: "default/redis", Port: 6379, WakeTimeout: 60 * time.Second, Grace: 30 * time.Second}

// since writes a machine time as seconds after t0.
func since(at monotime.Time) string {
	if at == 0 {
		return "never"
	}
	return at.Sub(t0).String()
}

// words writes actions in short form. It leaves out Record, because waterfalls have tests of their own.
func words(actions []Action) string {
	var out []string
	for _, a := range actions {
		switch a := a.(type) {
		case StartPod:
			out = append(out, fmt.Sprintf("start %d", a.Ref))
		case PublishBackends:
			s := fmt.Sprintf("publish %d", a.Generation)
			for _, b := range a.Pods {
				s += fmt.Sprintf(" %d:%s", b.Ref, [...]string{"?", "starting", "serving", "draining"}[b.State])
				if b.Open != 0 {
					s += fmt.Sprintf("@%b", b.Open)
				}
			}
			if a.Sharing > 0 {
				s += fmt.Sprintf(" shared by %d", a.Sharing)
			}
			out = append(out, s)
		case RefuseParked:
			if a.Ports != 0 {
				out = append(out, fmt.Sprintf("refuse @%b: %s", a.Ports, a.Reason))
				continue
			}
			out = append(out, "refuse: "+a.Reason)
		case StopPod:
			out = append(out, fmt.Sprintf("stop %d %s", a.Ref, a.Grace))
		case FreezePods:
			s := fmt.Sprintf("freeze %d", a.Seq)
			for _, p := range a.Pods {
				s += fmt.Sprintf(" %d since %s", p.Ref, since(p.LastPacket))
			}
			out = append(out, s)
		case ArmTimer:
			out = append(out, "timer "+since(a.At))
		case Report:
			out = append(out, [...]string{"info", "warn", "error"}[a.Severity]+": "+a.Text)
		}
	}
	return strings.Join(out, " | ")
}

// did is one step of a test: an event at a time (seconds after t0), and the expected state and actions.
type did struct {
	at    float64
	ev    Event
	state State
	want  string
}

func at(s float64) monotime.Time { return t0.Add(time.Duration(s * float64(time.Second))) }

// The steps into the states in which the test cases begin.
var (
	toWaking = []did{{0, WakeAsked{Parked: 2}, Waking, "start 1 | timer 1m0s | info: wakes: 2 connection requests parked"}}
	toNet    = append(toWaking[:1:1],
		did{0.03, NetworkReady{1}, Waking, "publish 1 1:starting"},
		did{0.06, Started{1}, Waking, ""})
	toWarm = append(toNet[:3:3], did{0.08, Listening{Ref: 1, At: at(0.08)}, Warm, "publish 2 1:serving | timer never | " +
		"info: warm: listens 80.000 ms after the SYN"})
	toDrain  = append(toWarm[:4:4], did{300, IdleSeen{LastPacket: at(0)}, Stopping, "publish 3 1:draining | timer 5m5s"})
	toTerm   = append(toDrain[:5:5], did{300.001, Quiet{1, 3, at(0), 2}, Stopping, "stop 1 30s | timer never"})
	toCold   = append(toTerm[:6:6], did{301, StopDone{1}, Cold, "publish 4 | info: sleeps"})
	toUpdate = append(toWarm[:4:4], did{10, SpecChanged{testSpec, true}, Warm,
		"start 2 | timer 16m10s | info: the manifest changed: a new pod starts, the old one serves until it listens"})
	toSwitched = append(toUpdate[:5:5],
		did{10.1, NetworkReady{2}, Warm, "publish 3 1:serving 2:starting"},
		did{10.2, Listening{Ref: 2, At: at(10.2)}, Warm, "publish 4 1:draining 2:serving | timer 40.2s | " +
			"info: the new pod serves; the old one is drained"})
	toFailed1 = append(toWaking[:1:1], did{1, StartFailed{Ref: 1, Err: errors.New("no image")}, Failed,
		"refuse: no image | timer never | error: wake failed: no image"})
	toFailed2 = append(toFailed1[:2:2],
		did{1, WakeAsked{Parked: 1}, Waking, "start 2 | timer 1m1s | info: wakes: 1 connection request parked"},
		did{2, StartFailed{Ref: 2, Err: errors.New("no image")}, Failed, "refuse: no image | timer never | " +
			"error: wake failed: no image; not tried again for 1s"})
	toSlept = append(toWarm[:4:4], did{5, SleepAsked{}, Stopping, "publish 3 1:draining | timer 10s"})
)

func TestServiceWithOnePodStepsThroughItsStates(t *testing.T) {
	other := testSpec
	other.Port, other.WakeTimeout = 6380, 5*time.Second
	down := errors.New("runtime not available")
	cases := map[string]struct{ way, rest []did }{
		"whole life": {toCold, []did{
			{400, WakeAsked{Parked: 1}, Waking, "start 2 | timer 7m40s | info: wakes: 1 connection request parked"}}},
		"cold: other events change nothing": {nil, []did{
			{0, SleepAsked{}, Cold, ""}, {0, SpecChanged{testSpec, true}, Cold, ""}, {0, Timer{}, Cold, ""},
			{0, Quiet{Ref: 1}, Cold, ""}, {0, Listening{Ref: 1}, Cold, ""}, {0, Exited{Ref: 1}, Cold, ""},
			{0, StopDone{1}, Cold, ""}}},
		"cold: a daemon refers to a pod": {nil, []did{{0, IdleSeen{}, Cold, "publish 1"}, {0, Rejoined{}, Cold, "publish " +
			"2"}}},
		"cold: deleted": {nil, []did{{0, Deleted{}, Stopping, "info: " +
			"removed"}, {0, WakeAsked{}, Stopping, "refuse: the service was removed"}}},

		"waking: asked again": {toWaking, []did{{0.01, WakeAsked{Parked: 9}, Waking, ""}}},
		"waking: listens before Start returns": {toWaking, []did{
			{0.05, NetworkReady{1}, Waking, "publish 1 1:starting"},
			{0.06, Listening{Ref: 1, At: at(0.06)}, Warm, "publish 2 1:serving | timer never | " +
				"info: warm: listens 60.000 ms after the SYN"},
			{0.07, Started{1}, Warm, ""}}},
		"waking: process exits": {toNet, []did{
			{1, Exited{1, 1, "no such file\n"}, Failed, "publish 2 | refuse: process exited with code 1: no such file | " +
				"stop 1 0s | timer never | error: wake failed: process exited with code 1: no such file"},
			{1, WakeAsked{Parked: 1}, Waking, "start 2 | timer 1m1s | info: wakes: 1 connection request parked"},
			{1.1, StopDone{1}, Waking, ""}}},
		"waking: killed by signal": {toWaking, []did{
			{1, Exited{1, 137, ""}, Failed, "refuse: process was ended by signal 9 | stop 1 0s | timer never | " +
				"error: wake failed: process was ended by signal 9"}}},
		"waking: deadline, nothing listens": {toNet, []did{
			{59, Timer{}, Waking, ""},
			{60, Timer{}, Failed, "publish 2 | refuse: process runs but nothing listens on port 6379 for IPv4 after 1m0s: " +
				"check spec.targetPort, and that the process listens on 0.0.0.0 or [::], " +
				"not on 127.0.0.1 or for IPv6 only | stop 1 30s | timer never | " +
				"error: wake failed: process runs but nothing listens on port 6379 for IPv4 after 1m0s: " +
				"check spec.targetPort, and that the process listens on 0.0.0.0 or [::], not on 127.0.0.1 or for IPv6 only"},
			{61, WakeAsked{Parked: 1}, Waking, "start 2 | timer 2m1s | info: wakes: 1 connection request parked"},
			{62, StopDone{1}, Waking, ""}}},
		"waking: deadline, no image": {toWaking, []did{
			{60, Timer{}, Failed, "refuse: no process after 1m0s: its start has not come to its network | stop 1 30s | " +
				"timer never | error: wake failed: no process after 1m0s: its start has not come to its network"}}},
		"waking: deadline, no sandbox": {toWaking, []did{
			{1, PhaseEnded{1, PhaseImage, at(1)}, Waking, ""},
			{60, Timer{}, Failed, "refuse: no process after 1m0s: the image is there, the pod's network is not | stop 1 30s | " +
				"timer never | error: wake failed: no process after 1m0s: the image is there, the pod's network is not"}}},
		"waking: deadline, no container": {toWaking, []did{
			{1, PhaseEnded{1, PhaseImage, at(1)}, Waking, ""}, {2, PhaseEnded{1, PhaseSandbox, at(2)}, Waking, ""},
			{60, Timer{}, Failed, "refuse: no process after 1m0s: the network is ready, the container is not created | " +
				"stop 1 30s | timer never | error: wake failed: no process after 1m0s: the network is ready, the container is " +
				"not created"}}},
		"waking: deadline, init container": {toWaking, []did{
			{1, PhaseEnded{1, PhaseSandbox, at(1)}, Waking, ""}, {2, Waits{1, "first"}, Waking, ""},
			{2, Waits{1, "second"}, Waking, ""},
			{60, Timer{}, Failed, "refuse: no process after 1m0s: second | stop 1 30s | timer never | " +
				"error: wake failed: no process after 1m0s: second"}}},
		"waking: deadline, after init containers": {toWaking, []did{
			{1, Waits{1, "first"}, Waking, ""}, {2, Waits{1, ""}, Waking, ""},
			{2, PhaseEnded{1, PhaseCreated, at(2)}, Waking, ""},
			{60, Timer{}, Failed, "refuse: no process after 1m0s: the container is created, its process does not start | " +
				"stop 1 30s | timer never | error: wake failed: no process after 1m0s: the container is created, its process " +
				"does not start"}}},
		"waking: deadline, no process": {toWaking, []did{
			{1, PhaseEnded{1, PhaseCreated, at(1)}, Waking, ""},
			{60, Timer{}, Failed, "refuse: no process after 1m0s: the container is created, its process does not start | " +
				"stop 1 30s | timer never | error: wake failed: no process after 1m0s: the container is created, its process " +
				"does not start"}}},
		"waking: runtime does not answer, then does": {toWaking, []did{
			{1, StartFailed{1, down, true}, Waking, "timer 1.1s | warn: start failed, tried again in 100ms: runtime not " +
				"available"},
			{1.05, Timer{}, Waking, ""},
			{1.1, Timer{}, Waking, "start 2 | timer 1m0s"},
			{2, StartFailed{2, down, true}, Waking, "timer 2.2s | warn: start failed, tried again in 200ms: runtime not " +
				"available"},
			{2.2, Timer{}, Waking, "start 3 | timer 1m0s"},
			{3, Listening{Ref: 3, At: at(3)}, Warm, "publish 1 3:serving | timer never | " +
				"info: warm: listens 3000.000 ms after the SYN"}}},
		"waking: runtime never answers": {toWaking, []did{
			{59.95, StartFailed{1, down, true}, Waking, "warn: start failed, tried again in 100ms: runtime not available"},
			{60, Timer{}, Failed, "refuse: no pod after 1m0s: runtime not available | timer never | " +
				"error: wake failed: no pod after 1m0s: runtime not available"}}},
		"waking: spec changed": {toNet, []did{
			{1, SpecChanged{other, true}, Waking, "start 2 | publish 2 | stop 1 30s | timer 6s | " +
				"info: the manifest changed: the wake begins again"},
			{1.5, Listening{Ref: 1, At: at(1.5)}, Waking, ""},
			{2, StopDone{1}, Waking, ""},
			{2.5, StartFailed{Ref: 1, Err: down}, Waking, ""},
			{3, NetworkReady{2}, Waking, "publish 3 2:starting"},
			{3, Listening{Ref: 2, At: at(3)}, Warm, "publish 4 2:serving | timer never | " +
				"info: warm: listens 3000.000 ms after the SYN"}}},
		"waking: only a timeout changed": {toNet, []did{{1, SpecChanged{other, false}, Waking, ""}}},
		"waking: sleep asked": {toNet, []did{
			{1, SleepAsked{}, Stopping, "publish 2 | refuse: put to sleep by a user | stop 1 30s | timer never | " +
				"info: wake given up: put to sleep by a user"},
			{2, StopDone{1}, Cold, "info: sleeps"}}},
		"waking: deleted": {toNet, []did{
			{1, Deleted{}, Stopping, "publish 2 | refuse: the service was removed | stop 1 30s | timer never | info: removed"},
			{1, WakeAsked{}, Stopping, "refuse: the service was removed"}, {1, SpecChanged{other, true}, Stopping, ""},
			{1, SleepAsked{}, Stopping, ""},
			{2, StopDone{1}, Stopping, ""}}},
		"waking: daemon came back": {toNet, []did{{1, Rejoined{}, Waking, "publish 2 1:starting"}}},
		"waking: idle is ignored":  {toNet, []did{{1, IdleSeen{LastPacket: at(0)}, Waking, ""}}},

		"warm: asked again":       {toWarm, []did{{1, WakeAsked{Parked: 1}, Warm, "publish 3 1:serving"}}},
		"warm: daemon came back":  {toWarm, []did{{1, Rejoined{}, Warm, "publish 3 1:serving"}}},
		"warm: listens once more": {toWarm, []did{{1, Listening{Ref: 1, At: at(1)}, Warm, ""}}},
		"warm: a flow count":      {toWarm, []did{{1, FlowsSeen{Ref: 1, Open: 0}, Warm, ""}}},
		"warm: a stale Quiet":     {toWarm, []did{{1, Quiet{1, 2, at(0), 0}, Warm, ""}}},
		"warm: restart": {toWarm, []did{
			{10, RestartAsked{}, Warm, "start 2 | timer 16m10s | " +
				"info: a restart was asked for: a new pod starts, the old one serves until it listens"},
			{11, StartFailed{2, errors.New("no image"), false}, Warm, "timer never | " +
				"error: restart failed, the previous pod continues to serve: no image"}}},
		"cold: restart":           {nil, []did{{0, RestartAsked{}, Cold, ""}}},
		"warm: only timeouts new": {toWarm, []did{{1, SpecChanged{other, false}, Warm, ""}}},
		"warm: removed without an exit": {toWarm, []did{{1, StopDone{1}, Cold, "publish 3 | " +
			"error: crashed: the pod is gone; the next connection request wakes it again"}}},
		"warm: crash": {toWarm, []did{
			{9, Exited{1, 2, "panic"}, Cold, "publish 3 1:draining | stop 1 0s | " +
				"error: crashed: process exited with code 2: panic; the next connection request wakes it again"},
			{9, WakeAsked{Parked: 1}, Waking, "start 2 | timer 1m9s | info: wakes: 1 connection request parked"},
			{9.1, NetworkReady{2}, Waking, "publish 4 1:draining 2:starting"},
			{9.2, StopDone{1}, Waking, "publish 5 2:starting"}}},
		"warm: deleted": {toWarm, []did{
			{1, Deleted{}, Stopping, "publish 3 1:draining | refuse: the service was removed | stop 1 30s | info: removed"},
			{2, Exited{1, 143, ""}, Stopping, ""},
			{2, StopDone{1}, Stopping, "publish 4"}}},
		"warm: deleted revision": {toWarm, []did{
			{1, Deleted{Drain: true}, Stopping, "publish 3 1:draining | refuse: the service was removed | timer 31s | " +
				"info: removed"},
			{2, Quiet{1, 3, at(1.5), 1}, Stopping, ""},
			{3, FlowsSeen{Ref: 1, Open: 0}, Stopping, "stop 1 30s | timer never"},
			{4, StopDone{1}, Stopping, "publish 4"}}},
		"warm: deleted revision, no gate answers": {toWarm, []did{
			{1, Deleted{Drain: true}, Stopping, "publish 3 1:draining | refuse: the service was removed | timer 31s | " +
				"info: removed"},
			{31, Timer{}, Stopping, "stop 1 30s | timer never"}}},
		"warm: deleted revision, then shutdown": {toWarm, []did{
			{1, Deleted{Drain: true}, Stopping, "publish 3 1:draining | refuse: the service was removed | timer 31s | " +
				"info: removed"},
			{2, Deleted{}, Stopping, "stop 1 30s | timer never"}}},

		"drain: a packet came": {toDrain, []did{
			{300.001, Quiet{1, 3, at(299.9), 1}, Warm, "publish 4 1:serving | timer never | info: stays awake: a packet came"}}},
		"drain: a client came": {toDrain, []did{
			{300.001, WakeAsked{Parked: 1}, Warm, "publish 4 1:serving | timer never | info: stays awake: a new client came"},
			{300.002, Quiet{1, 3, at(0), 0}, Warm, ""}}},
		"drain: Quiet of an older generation": {toDrain, []did{{300.001, Quiet{1, 2, at(0), 0}, Stopping, ""}}},
		"drain: no gate answers": {toDrain, []did{
			{305, Timer{}, Warm, "publish 4 1:serving | timer never | " +
				"info: stays awake: no gate confirmed that the pod is drained"}}},
		"drain: daemon came back": {toDrain, []did{
			{304, Rejoined{}, Stopping, "publish 4 1:draining | timer 5m9s"},
			{304.1, Quiet{1, 4, at(0), 0}, Stopping, "stop 1 30s | timer never"}}},
		"drain: sleep asked": {toDrain, []did{
			{300.001, SleepAsked{}, Stopping, ""},
			{300.002, Quiet{1, 3, at(299.9), 1}, Stopping, "stop 1 30s | timer never"}}},
		"drain: spec changed, then a packet": {toDrain, []did{
			{300.001, SpecChanged{testSpec, true}, Stopping, ""},
			{300.002, Quiet{1, 3, at(299.9), 1}, Warm, "start 2 | publish 4 1:serving | timer 21m0.002s | " +
				"info: stays awake: a packet came | " +
				"info: the manifest changed: a new pod starts, the old one serves until it listens"}}},
		"drain: process ends by itself": {toDrain, []did{
			{300.001, Exited{1, 0, ""}, Cold, "stop 1 0s | timer never | " +
				"warn: ended while it was drained: process exited with code 0 | info: sleeps"}}},
		"drain: deleted": {toDrain, []did{{301, Deleted{}, Stopping, "refuse: the service was removed | stop 1 30s | " +
			"timer never | info: removed"}}},

		"term: a client comes": {toTerm, []did{
			{300.5, WakeAsked{Parked: 1}, Waking, "start 2 | timer 6m0.5s | info: sleeps | " +
				"info: wakes: 1 connection request parked"},
			{300.6, NetworkReady{2}, Waking, "publish 4 1:draining 2:starting"},
			{300.7, Listening{Ref: 2, At: at(300.7)}, Warm, "publish 5 1:draining 2:serving | timer never | " +
				"info: warm: listens 200.000 ms after the SYN"},
			{301, Exited{1, 0, ""}, Warm, ""},
			{301.1, StopDone{1}, Warm, "publish 6 2:serving"}}},
		"term: exit, then removed": {toTerm, []did{
			{301, Exited{1, 0, ""}, Cold, "info: sleeps"},
			{302, StopDone{1}, Cold, "publish 4"}}},
		"term: spec changed": {toTerm, []did{{301, SpecChanged{testSpec, true}, Stopping, ""},
			{302, StopDone{1}, Cold, "publish 4 | info: sleeps"}}},

		"sleep: packets do not matter": {toSlept, []did{
			{5.001, Quiet{1, 3, at(4.99), 7}, Stopping, "stop 1 30s | timer never"}}},
		"sleep: a client waits for the next pod": {toSlept, []did{
			{5.001, WakeAsked{Parked: 1}, Stopping, ""},
			{5.002, Quiet{1, 3, at(4.99), 7}, Waking, "start 2 | stop 1 30s | timer 1m5.002s | info: sleeps | " +
				"info: wakes: 1 connection request parked"},
			{6, StopDone{1}, Waking, "publish 4"}}},
		"sleep: no gate answers": {toSlept, []did{{10, Timer{}, Stopping, "stop 1 30s | timer never"}}},

		"update: flows end": {toSwitched, []did{
			{10.3, FlowsSeen{Ref: 1, Open: 0}, Warm, ""}, // may be older than the drain
			{10.3, Quiet{1, 4, at(10), 2}, Warm, ""},
			{11, FlowsSeen{Ref: 1, Open: 1}, Warm, ""},
			{12, FlowsSeen{Ref: 1, Open: 0}, Warm, "stop 1 30s | timer never"},
			{13, StopDone{1}, Warm, "publish 5 2:serving"}}},
		"update: no flows": {toSwitched, []did{{10.3, Quiet{1, 4, at(10), 0}, Warm, "stop 1 30s | " +
			"timer never"}}},
		"update: flows do not end":              {toSwitched, []did{{40.2, Timer{}, Warm, "stop 1 30s | timer never"}}},
		"update: old one crashes while drained": {toSwitched, []did{{11, Exited{1, 1, ""}, Warm, "stop 1 0s | timer never"}}},
		"update: new one crashes after the switch": {toSwitched, []did{
			{11, Exited{2, 1, ""}, Cold, "publish 5 1:draining 2:draining | stop 2 0s | " +
				"error: crashed: process exited with code 1; the next connection request wakes it again"},
			{11, WakeAsked{Parked: 1}, Waking, "start 3 | info: wakes: 1 connection request parked"}}},
		"update: new one fails to start": {toUpdate, []did{
			{11, StartFailed{2, errors.New("no image"), false}, Warm, "timer never | " +
				"error: update failed, the pod of the previous manifest continues to serve: no image"},
			{12, WakeAsked{}, Warm, "publish 3 1:serving"}}},
		"update: new one exits": {toUpdate, []did{
			{11, Exited{2, 1, ""}, Warm, "stop 2 0s | timer never | error: update failed, the pod of the previous manifest " +
				"continues to serve: process exited with code 1"}}},
		"update: new one never listens": {toUpdate, []did{
			{10, PhaseEnded{2, PhaseImage, at(10)}, Warm, "timer 1m10s"},
			{11, Started{2}, Warm, "publish 3 1:serving 2:starting"},
			{70, Timer{}, Warm, "publish 4 1:serving | stop 2 30s | timer never | " +
				"error: update failed, the pod of the previous manifest continues to serve: nothing listens on port 6379 after " +
				"1m0s"},
			{71, StopDone{2}, Warm, ""},
			{80, SpecChanged{testSpec, true}, Warm, "start 3 | timer 17m20s | " +
				"info: the manifest changed: a new pod starts, the old one serves until it listens"}}},
		"update: new one gets no image": {toUpdate, []did{
			{970, Timer{}, Warm, "stop 2 30s | timer never | error: update failed, the pod of the previous manifest continues " +
				"to serve: its process was not started in time"}}},
		"update: old one crashes meanwhile": {toUpdate, []did{
			{11, Exited{1, 1, ""}, Waking, "publish 3 1:draining | stop 1 0s | timer 1m11s | " +
				"error: lost its pod while the replacement starts: process exited with code 1"},
			{12, WakeAsked{Parked: 1}, Waking, ""},
			{13, Listening{Ref: 2, At: at(13)}, Warm, "publish 4 1:draining 2:serving | timer never | info: warm"}}},
		"update: idle meanwhile": {toUpdate, []did{
			{11, IdleSeen{LastPacket: at(0)}, Stopping, "publish 3 1:draining | stop 2 30s | timer 16s"},
			{11, Quiet{1, 3, at(0), 0}, Stopping, "stop 1 30s | timer never"}}},
		"update: changed once more": {toUpdate, []did{
			{11, SpecChanged{testSpec, true}, Warm, "stop 2 30s | timer never"},
			{12, StopDone{2}, Warm, "start 3 | timer 16m12s | info: the manifest changed: a new pod starts, the old one " +
				"serves until it listens"}}},
		"update: changed once more while the old one drains": {toSwitched, []did{
			{11, SpecChanged{testSpec, true}, Warm, ""},
			{12, Quiet{1, 4, at(10), 0}, Warm, "stop 1 30s | timer never"},
			{13, StopDone{1}, Warm, "start 3 | publish 5 2:serving | timer 16m13s | " +
				"info: the manifest changed: a new pod starts, the old one serves until it listens"}}},

		"failed: the second try is at once, the third not": {toFailed2, []did{
			{2.5, WakeAsked{Parked: 1}, Failed, "refuse: no image; next try in 1s"},
			{3, WakeAsked{Parked: 1}, Waking, "start 3 | timer 1m3s | info: wakes: 1 connection request parked"},
			{4, StartFailed{Ref: 3, Err: errors.New("no image")}, Failed, "refuse: no image | timer never | " +
				"error: wake failed: no image; not tried again for 2s"}}},
		"failed: the manifest changed": {toFailed2, []did{
			{2.5, SpecChanged{testSpec, true}, Cold, ""},
			{2.5, WakeAsked{Parked: 1}, Waking, "start 3 | timer 1m2.5s | info: wakes: 1 connection request parked"},
			{4, StartFailed{Ref: 3, Err: errors.New("no image")}, Failed, "refuse: no image | timer never | " +
				"error: wake failed: no image"}}},
		"failed: a success resets": {toFailed2, []did{
			{3, WakeAsked{Parked: 1}, Waking, "start 3 | timer 1m3s | info: wakes: 1 connection request parked"},
			{4, Listening{Ref: 3, At: at(4)}, Warm,
				"publish 1 3:serving | timer never | info: warm: listens 1000.000 ms after the SYN"},
			{5, Exited{3, 1, ""}, Cold, "publish 2 3:draining | stop 3 0s | " +
				"error: crashed: process exited with code 1; the next connection request wakes it again"},
			{5, WakeAsked{Parked: 1}, Waking, "start 4 | timer 1m5s | info: wakes: 1 connection request parked"},
			{6, StartFailed{Ref: 4, Err: errors.New("no image")}, Failed, "refuse: no image | timer never | " +
				"error: wake failed: no image"}}},
		"failed: sleep asked, deleted": {toFailed1, []did{{2, SleepAsked{}, Failed, ""}, {3, Deleted{}, Stopping, "info: " +
			"removed"}}},

		"adopted": {nil, []did{
			{0, Adopted{Ref: 7}, Warm, "publish 1 7:starting | info: warm: its pod was found running"},
			{0, Adopted{Ref: 7}, Warm, ""},
			{0, Adopted{Ref: 8}, Warm, "publish 2 7:starting 8:starting | info: one more of its pods was found running"},
			{1, Listening{Ref: 7, At: at(1)}, Warm, "publish 3 7:serving 8:starting"},
			{2, WakeAsked{}, Warm, "publish 4 7:serving 8:starting"},
			{3, Listening{Ref: 8, At: at(3)}, Warm, "publish 5 7:serving 8:serving"}}},
		"adopted: does not listen, no client waits": {nil, []did{
			{0, Adopted{Ref: 7}, Warm, "publish 1 7:starting | info: warm: its pod was found running"},
			{100, Timer{}, Warm, ""},
			{300, IdleSeen{}, Stopping, "publish 2 7:draining | timer 5m5s"}}},
		"adopted: does not listen, a client waits": {nil, []did{
			{0, Adopted{Ref: 7}, Warm, "publish 1 7:starting | info: warm: its pod was found running"},
			{5, WakeAsked{}, Warm, "publish 2 7:starting | timer 1m5s"},
			{6, WakeAsked{}, Warm, "publish 3 7:starting"},
			{65, Timer{}, Failed, "publish 4 7:draining | refuse: the pod found running does not listen on port 6379: waited " +
				"1m0s | stop 7 30s | timer never | " +
				"error: wake failed: the pod found running does not listen on port 6379: waited 1m0s"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { walk(t, testSpec, c.way, c.rest) })
	}
}

// walk gives events to a machine and compares its actions.
func walk(t *testing.T, spec Spec, way, rest []did) {
	t.Helper()
	m := New(spec, 0)
	for i, d := range append(way[:len(way):len(way)], rest...) {
		got := words(m.Step(d.ev, at(d.at)))
		if got != d.want || m.State() != d.state {
			t.Fatalf("step %d, %T%+v:\ngot  %s: %s\nwant %s: %s", i, d.ev, d.ev, m.State(), got, d.state, d.want)
		}
	}
}

func TestDeletedServiceIsGoneOnceItsPodIsRemoved(t *testing.T) {
	m := New(testSpec, 0)
	for _, d := range toWarm {
		m.Step(d.ev, at(d.at))
	}
	m.Step(Deleted{}, at(1))
	if m.Gone() {
		t.Error("gone although its pod is not")
	}
	m.Step(StopDone{1}, at(2))
	if !m.Gone() {
		t.Error("not gone although its pod is")
	}
}

func TestSkipGenerationsNeverGoesBack(t *testing.T) {
	m := New(testSpec, 10)
	m.SkipGenerations(5)
	if got := words(m.Step(Rejoined{}, t0)); got != "publish 11" {
		t.Error(got)
	}
	m.SkipGenerations(20)
	if got := words(m.Step(Rejoined{}, t0)); got != "publish 21" {
		t.Error(got)
	}
}

func TestBackoffDoublesUpToItsBound(t *testing.T) {
	m := New(testSpec, 0)
	now := t0
	var got []string
	for range 12 {
		m.Step(WakeAsked{}, now)
		ref := m.Pods()[0]
		m.Step(StartFailed{Ref: ref, Err: errors.New("no")}, now)
		got = append(got, m.backoff.wakeRetry.Sub(now).String())
		now = max(now, m.backoff.wakeRetry)
	}
	if want := "0s 1s 2s 4s 8s 16s 32s 1m0s 1m0s 1m0s 1m0s 1m0s"; strings.Join(got, " ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, " "), want)
	}
}

func TestPodsThatCannotBeRemovedAreBounded(t *testing.T) {
	m := New(testSpec, 0)
	now := t0
	for range 100 {
		now = now.Add(2 * time.Minute)
		m.Step(Timer{}, now)
		m.Step(WakeAsked{}, now)
		for _, r := range m.Pods() {
			m.Step(Exited{Ref: r}, now)
		}
	}
	if n := len(m.Pods()); n != maxPods {
		t.Errorf("%d pods, want %d", n, maxPods)
	}
}

// Some phases end after the service is warm.
func TestWaterfallGetsEachPhaseOnce(t *testing.T) {
	var ring Ring
	seen := map[PhaseName]int{}
	m := New(testSpec, 0)
	us := func(n int64) monotime.Time { return t0.Add(time.Duration(n) * time.Microsecond) }
	step := func(ev Event, now int64) {
		for _, a := range m.Step(ev, us(now)) {
			if r, ok := a.(Record); ok {
				ring.Put(r)
				for _, p := range r.News {
					seen[p.Name]++
				}
			}
		}
	}
	step(WakeAsked{SYNSeen: us(0), Noticed: us(40), Parked: 3}, 90)
	for i, p := range []PhaseName{PhaseImage, PhaseSandbox, PhaseCreated, PhaseStarted} {
		step(PhaseEnded{1, p, us(int64(i+1) * 1000)}, int64(i+1)*1000)
	}
	step(PhaseEnded{9, PhaseImage, us(7)}, 5000) // no pod of this wake
	step(PhaseEnded{1, "nonsense", us(7)}, 5000)
	step(Unready{1, us(5500), "", false}, 5600)
	step(Unready{1, 0, "httpGet: status 503", false}, 5700)
	step(Listening{Ref: 1, At: us(6000)}, 6100)
	step(Trace{Ref: 1, Released: us(6050), ReleasedN: 3}, 6200)
	step(Trace{Ref: 1, Released: us(6050), ReleasedN: 3, FirstSYNACK: us(6090), FirstByte: us(7000)}, 8000)
	step(Trace{Ref: 1, Released: us(9999), ReleasedN: 3, FirstByte: us(9999)}, 9999)
	var got []string
	for _, p := range ring.Wakes("default/redis")[0].Phases {
		got = append(got, fmt.Sprintf("%s=%d", p.Name, p.At.Microseconds()))
	}
	want := "syn-seen=0 told=40 handled=90 image=1000 sandbox=2000 created=3000 started=4000 listening=5500 ready=6000 " +
		"released=6050 first-synack=6090 first-byte=7000"
	if strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	for _, p := range PhaseNames() {
		if seen[p] != 1 {
			t.Errorf("phase %s was news %d times, want once", p, seen[p])
		}
	}
	w := ring.Wakes("")[0]
	if w.Result != ResultWarm || w.Parked != 3 || w.Released != 3 {
		t.Errorf("%+v", w)
	}
	step(Deleted{}, 20000)
	if r := ring.Wakes("")[0].Result; r != ResultWarm {
		t.Errorf("a deletion long after changed the wake's result to %s", r)
	}
}
