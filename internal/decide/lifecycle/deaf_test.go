// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "testing"

func TestPodThatStopsListeningServesAgainOrIsReplaced(t *testing.T) {
	const never = "the pod no longer listens on port 6379: waited 1m0s"
	deaf := append(toWarm[:4:4], did{10, Deaf{Ref: 1}, Warm,
		"publish 3 1:starting | info: a pod gets no new connections: it no longer listens on port 6379"})
	for name, c := range map[string]struct{ way, rest []did }{
		"it listens again": {deaf, []did{
			{11, WakeAsked{Parked: 1}, Warm, "publish 4 1:starting | timer 1m11s"},
			{12, Listening{Ref: 1, At: at(12)}, Warm, "publish 5 1:serving | timer never"}}},
		"it never does": {deaf, []did{
			{11, WakeAsked{Parked: 1}, Warm, "publish 4 1:starting | timer 1m11s"},
			{71, Timer{}, Warm, "refuse: " + never + " | timer never | error: clients are refused: " + never},
			{72, Listening{Ref: 1, At: at(72)}, Warm, "publish 5 1:serving"}}},
		"its process has ended, and clients wait": {deaf, []did{
			{10.01, WakeAsked{Parked: 2}, Warm, "publish 4 1:starting | timer 1m10.01s"},
			{10.1, Exited{1, 137, ""}, Waking, "start 2 | publish 5 1:draining | stop 1 0s | timer 1m10.1s | " +
				"error: crashed: process was ended by signal 9; the next connection request wakes it again | " +
				"info: wakes: 2 connection requests parked"}}},
		"its process has ended, and nobody waits": {deaf, []did{
			{10.1, Exited{1, 137, ""}, Cold, "publish 4 1:draining | stop 1 0s | " +
				"error: crashed: process was ended by signal 9; the next connection request wakes it again"}}},
		"it drains already": {toWarm[:4:4], []did{
			{300, IdleSeen{LastPacket: at(0)}, Stopping, "publish 3 1:draining | timer 5m5s"},
			{300.1, Deaf{Ref: 1}, Stopping, ""}}},
	} {
		t.Run(name, func(t *testing.T) { walk(t, testSpec, c.way, c.rest) })
	}
}
