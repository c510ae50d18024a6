// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// freezeSpec freezes after 5 s and stops after a minute.
func freezeSpec() Spec {
	spec := testSpec
	spec.FreezeAfter, spec.IdleTimeout = 5*time.Second, time.Minute
	return spec
}

// The steps to a service whose only pod is frozen.
var (
	toFreezing = append(toWarm[:4:4], did{6, IdleSeen{LastPacket: at(1)}, Warm, "freeze 1 1 since 1s"})
	toFrozen   = append(toFreezing[:5:5], did{6.1, FrozenSeen{Ref: 1, Seq: 1, Frozen: true, At: at(6.1)}, Frozen,
		"timer 1m1s | info: frozen: not used for 6s"})
)

func TestServiceFreezesBeforeItIsStopped(t *testing.T) {
	unfrozen, longer, always, least := testSpec, freezeSpec(), freezeSpec(), freezeSpec()
	least.Min = 1
	unfrozen.IdleTimeout = time.Minute
	longer.IdleTimeout = 2 * time.Minute
	always.FreezeWhenBusy = true
	cases := map[string]struct {
		spec      Spec
		way, rest []did
	}{
		"whole life": {freezeSpec(), toFrozen, []did{
			{61, Timer{}, Stopping, "publish 3 1:draining | timer 1m6s"},
			// The clock of its node is estimated anew: it is the same packet.
			{61.1, Quiet{Ref: 1, Generation: 3, LastPacket: at(1.01)}, Stopping, "stop 1 30s | timer never"},
			{61.2, FrozenSeen{Ref: 1, Seq: 1, At: at(61.2)}, Stopping, ""},
			{62, StopDone{1}, Cold, "publish 4 | info: sleeps"}}},
		"a packet thaws it": {freezeSpec(), toFrozen, []did{
			{10, FrozenSeen{Ref: 1, Seq: 1, At: at(10)}, Warm, "timer never | info: thawed"},
			{20, IdleSeen{LastPacket: at(15)}, Warm, "freeze 2 1 since 15s"}}},
		"frozen: reports of idleness change nothing": {freezeSpec(), toFrozen, []did{
			{16, IdleSeen{LastPacket: at(1)}, Frozen, ""}}},
		"frozen: a keepalive delays the stop": {freezeSpec(), toFrozen, []did{
			{61, Timer{}, Stopping, "publish 3 1:draining | timer 1m6s"},
			{61.1, Quiet{Ref: 1, Generation: 3, LastPacket: at(50)}, Frozen,
				"publish 4 1:serving | timer 2m1.1s | info: stays awake: a packet came"},
			{121.1, Timer{}, Stopping, "publish 5 1:draining | timer 2m6.1s"},
			{121.2, Quiet{Ref: 1, Generation: 5, LastPacket: at(50)}, Stopping, "stop 1 30s | timer never"}}},
		"a packet comes before it is frozen": {freezeSpec(), toFreezing, []did{
			{6.1, FrozenSeen{Ref: 1, Seq: 1, At: at(6.1)}, Warm, ""},
			{12, IdleSeen{LastPacket: at(6.05)}, Warm, "freeze 2 1 since 6.05s"}}},
		"it cannot be frozen": {freezeSpec(), toFreezing, []did{
			{6.1, FrozenSeen{Ref: 1, Seq: 1, At: at(6.1), Reason: "no cgroup"}, Warm,
				"warn: not frozen: a pod cannot be frozen: no cgroup"},
			{16, IdleSeen{LastPacket: at(1)}, Warm, "freeze 2 1 since 1s"},
			{16.1, FrozenSeen{Ref: 1, Seq: 2, At: at(16.1), Reason: "no cgroup"}, Warm, ""},
			{62, IdleSeen{LastPacket: at(1)}, Stopping, "publish 3 1:draining | timer 1m7s"}}},
		"a busy pod runs on": {freezeSpec(), toWarm, []did{
			{6, IdleSeen{LastPacket: at(1), Cores: map[Ref]float64{1: 0.5}}, Warm,
				"info: not frozen: a pod works although nobody uses it: 50 % of a core since its last packet"},
			{16, IdleSeen{LastPacket: at(1), Cores: map[Ref]float64{1: 0.3}}, Warm, ""},
			{26, IdleSeen{LastPacket: at(1), Cores: map[Ref]float64{1: 0.01}}, Warm, "freeze 1 1 since 1s"}}},
		"a busy pod is frozen if that is wanted": {always, toWarm, []did{
			{6, IdleSeen{LastPacket: at(1), Cores: map[Ref]float64{1: 0.5}}, Warm, "freeze 1 1 since 1s"}}},
		"nothing is frozen without freezeAfter": {unfrozen, toWarm, []did{
			{61, IdleSeen{LastPacket: at(1)}, Stopping, "publish 3 1:draining | timer 1m6s"}}},
		"frozen: a command needs the program": {freezeSpec(), toFrozen, []did{
			{8, ThawAsked{}, Frozen, "freeze 2 | timer never"},
			{8, ThawAsked{}, Frozen, ""},
			{8.1, FrozenSeen{Ref: 1, Seq: 2, At: at(8.1)}, Warm, "info: thawed"},
			{8.2, FrozenSeen{Ref: 1, Seq: 1, Frozen: true, At: at(6)}, Warm, ""}}},
		"frozen: a command needs the program, and the daemon is killed": {freezeSpec(), toFrozen, []did{
			{8, ThawAsked{}, Frozen, "freeze 2 | timer never"},
			{9, FrozenSeen{Ref: 1, Frozen: true, At: at(6)}, Frozen, "freeze 3"},
			{9.1, FrozenSeen{Ref: 1, Seq: 3, At: at(9.1)}, Warm, "info: thawed"}}},
		"frozen: the manifest changes": {freezeSpec(), toFrozen, []did{
			{8, SpecChanged{longer, false}, Frozen, "timer 2m1s"},
			{9, SpecChanged{unfrozen, false}, Frozen, "freeze 2 | timer never"},
			{9.1, FrozenSeen{Ref: 1, Seq: 2, At: at(9.1)}, Warm, "info: thawed"}}},
		"frozen: put to sleep": {freezeSpec(), toFrozen, []did{
			{8, SleepAsked{}, Stopping, "publish 3 1:draining | timer 13s"}}},
		"frozen: its node needs the room": {freezeSpec(), toFrozen, []did{
			{8, Pressed{"no room"}, Stopping,
				"publish 3 1:draining | timer 13s | warn: stopped while it was frozen: no room"},
			{8.1, Pressed{"no room"}, Stopping, ""},
			{8.2, Quiet{Ref: 1, Generation: 3, LastPacket: at(1)}, Stopping, "stop 1 30s | timer never"},
			{9, StopDone{1}, Cold, "publish 4 | info: sleeps"}}},
		"frozen: its node needs the room, and a client comes": {freezeSpec(), toFrozen, []did{
			{8, Pressed{"no room"}, Stopping,
				"publish 3 1:draining | timer 13s | warn: stopped while it was frozen: no room"},
			{8.5, Quiet{Ref: 1, Generation: 3, LastPacket: at(8.1)}, Frozen,
				"publish 4 1:serving | timer 1m8.5s | info: stays awake: a packet came"}}},
		"frozen: its node is drained": {freezeSpec(), toFrozen, []did{
			{8, Leaving{1, "its node is drained"}, Stopping,
				"publish 3 1:draining | timer 13s | info: its node is drained: it is frozen, and the service sleeps"},
			{8.2, Quiet{Ref: 1, Generation: 3, LastPacket: at(1)}, Stopping, "stop 1 30s | timer never"},
			{9, Exited{Ref: 1}, Cold, "info: sleeps"},
			{9, StopDone{1}, Cold, "publish 4"}}},
		"frozen: its node is drained, and a client comes": {freezeSpec(), toFrozen, []did{
			{8, Leaving{Ref: 1}, Stopping, "publish 3 1:draining | timer 13s | " +
				"info: its pod is being removed from outside: it is frozen, and the service sleeps"},
			{8.5, Quiet{Ref: 1, Generation: 3, LastPacket: at(8.1)}, Waking,
				"start 2 | timer 1m8.5s | info: stays awake: a packet came | info: starts 1 pod: its pods cannot be reached"}}},
		"a node that needs room stops only what is frozen": {freezeSpec(), toFreezing, []did{
			{6.05, Pressed{"no room"}, Warm, ""}}},
		"a service that always has a pod keeps it": {least, toFreezing, []did{
			{6.1, FrozenSeen{Ref: 1, Seq: 1, Frozen: true, At: at(6.1)}, Frozen, "info: frozen: not used for 6s"},
			{8, Pressed{"no room"}, Frozen, ""}}},
		"frozen: deleted": {freezeSpec(), toFrozen, []did{
			{8, Deleted{}, Stopping, "publish 3 1:draining | refuse: the service was removed | stop 1 30s | timer never | " +
				"info: removed"}}},
		"an earlier controller froze it": {freezeSpec(), nil, []did{
			{0, Adopted{Ref: 1}, Warm, "publish 1 1:starting | info: warm: its pod was found running"},
			{0, Listening{Ref: 1, At: at(0)}, Warm, "publish 2 1:serving"},
			{0, FrozenSeen{Ref: 1, Frozen: true, At: at(-5), LastPacket: at(-10)}, Frozen,
				"timer 50s | info: frozen: not used for 10s"}}},
		"an earlier controller froze what stays warm now": {unfrozen, toWarm, []did{
			{1, FrozenSeen{Ref: 1, Frozen: true, At: at(0)}, Frozen, "freeze 1"},
			{1.1, FrozenSeen{Ref: 1, Seq: 1, At: at(1.1)}, Warm, "info: thawed"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { walk(t, c.spec, c.way, c.rest) })
	}
}

func TestPacketThawsItsOwnPodAndUseThawsTheOthers(t *testing.T) {
	spec := freezeSpec()
	spec.Max = 3
	idle := IdleSeen{LastPacket: at(2), Of: map[Ref]monotime.Time{1: at(1), 2: at(2)}}
	walk(t, spec, nil, []did{
		{0, Scale{N: 2}, Waking, "start 1 | start 2 | timer 1m0s | info: starts 2 pods: scaled to 2"},
		{0, NetworkReady{1}, Waking, "publish 1 1:starting"},
		{0, NetworkReady{2}, Waking, "publish 2 1:starting 2:starting"},
		{0, Listening{Ref: 1, At: at(0)}, Warm, "publish 3 1:serving 2:starting | info: warm"},
		{0, Listening{Ref: 2, At: at(0)}, Warm, "publish 4 1:serving 2:serving | timer never | info: 2 pods serve"},
		{7, idle, Warm, "freeze 1 1 since 1s 2 since 2s"},
		{7, FrozenSeen{Ref: 1, Seq: 1, Frozen: true, At: at(7)}, Warm, ""},
		{7, FrozenSeen{Ref: 2, Seq: 1, Frozen: true, At: at(7)}, Frozen, "timer 1m2s | info: frozen: not used for 5s"},
		{9, FrozenSeen{Ref: 2, Seq: 1, At: at(9)}, Warm, "timer never | info: thawed"},
		{9.5, FlowsSeen{2, 1, at(9.4)}, Warm, ""},
		{10.5, FlowsSeen{2, 1, at(10.4)}, Warm, "freeze 2"},
		{10.6, FrozenSeen{Ref: 1, Seq: 2, At: at(10.6)}, Warm, ""},
	})
}
