// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"net/netip"
	"strings"
	"testing"
)

func socketsAt(addrs string) (all []netip.AddrPort) {
	for _, a := range strings.Fields(addrs) {
		all = append(all, netip.MustParseAddrPort(a))
	}
	return all
}

func TestMessagesNameWhatListens(t *testing.T) {
	const unreached = ", not on an address that clients reach"
	for at, want := range map[string]string{
		"":                              "",
		"0.0.0.0:9000":                  "listens on 9000; targetPort is 8080",
		"[::]:9000":                     "listens on 9000; targetPort is 8080",
		"127.0.0.1:9000 [::]:9001":      "listens on 127.0.0.1:9000 and 9001; targetPort is 8080",
		"0.0.0.0:9000 [::]:9000":        "listens on 9000; targetPort is 8080",
		"127.0.0.1:8080":                "listens on 127.0.0.1:8080" + unreached,
		"127.0.0.1:8080 0.0.0.0:9000":   "listens on 127.0.0.1:8080" + unreached,
		"[::1]:8080":                    "listens on [::1]:8080" + unreached,
		"[::]:8080":                     "listens on [::]:8080 for IPv6 only" + unreached,
		"127.0.0.1:8080 [::]:8080":      "listens on 127.0.0.1:8080 and [::]:8080" + unreached,
		"0.0.0.0:1 0.0.0.0:2 0.0.0.0:3": "listens on 1, 2 and 3; targetPort is 8080",
		"0.0.0.0:1 0.0.0.0:2 0.0.0.0:3 0.0.0.0:4 0.0.0.0:5 [::1]:6": "listens on 1, 2, 3, 4 and 2 more; " +
			"targetPort is 8080",
	} {
		if got := (sockets{true, socketsAt(at)}).elsewhere(8080); got != want {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
}

func TestAWakeThatNothingEndsSaysWhatListens(t *testing.T) {
	const (
		port  = "process runs but listens on 9000; targetPort is 6379: waited 1m0s: correct spec.targetPort"
		local = "process runs but listens on 127.0.0.1:6379, not on an address that clients reach: waited 1m0s: " +
			"make it listen on 0.0.0.0 or [::]"
		none  = "process runs but nothing listens on port 6379 after 1m0s: it listens on no TCP port"
		deaf  = "the pod no longer listens on port 6379: it listens on 9000; targetPort is 6379: waited 1m0s"
		found = "the pod found running listens on 9000; targetPort is 6379: waited 1m0s: correct spec.targetPort"
	)
	elsewhere, fails := Sockets{1, socketsAt("0.0.0.0:9000")}, func(why string) string {
		return "publish 2 | refuse: " + why + " | stop 1 30s | timer never | error: wake failed: " + why
	}
	for name, c := range map[string]struct{ way, rest []did }{
		"another port": {toNet, []did{{3, elsewhere, Waking, ""}, {60, Timer{}, Failed, fails(port)}}},
		"loopback only": {toNet, []did{{3, elsewhere, Waking, ""},
			{5, Sockets{1, socketsAt("127.0.0.1:6379")}, Waking, ""}, {60, Timer{}, Failed, fails(local)}}},
		"nothing": {toNet, []did{{3, Sockets{1, nil}, Waking, ""}, {60, Timer{}, Failed, fails(none)}}},
		"the right one, later": {toNet, []did{{3, elsewhere, Waking, ""},
			{4, Listening{Ref: 1, At: at(4)}, Warm, "publish 2 1:serving | " +
				"timer never | info: warm: listens 4000.000 ms after the SYN"}}},
		"another one than before": {toWarm, []did{
			{10, Deaf{Ref: 1}, Warm, "publish 3 1:starting | " +
				"info: a pod gets no new connections: it no longer listens on port 6379"},
			{11, WakeAsked{Parked: 1}, Warm, "publish 4 1:starting | timer 1m11s"}, {13, elsewhere, Warm, ""},
			{71, Timer{}, Warm, "refuse: " + deaf + " | timer never | error: clients are refused: " + deaf}}},
		"of a pod that was found running": {nil, []did{
			{0, Adopted{Ref: 1}, Warm, "publish 1 1:starting | info: warm: its pod was found running"},
			{5, WakeAsked{Parked: 1}, Warm, "publish 2 1:starting | timer 1m5s"}, {6, elsewhere, Warm, ""},
			{65, Timer{}, Failed, "publish 3 1:draining | refuse: " + found + " | stop 1 30s | " +
				"timer never | error: wake failed: " + found}}},
	} {
		t.Run(name, func(t *testing.T) { walk(t, testSpec, c.way, c.rest) })
	}
}

func TestServiceSaysWhatListensWhileClientsWait(t *testing.T) {
	m := New(testSpec, 0)
	step := func(second float64, e Event, want string) {
		t.Helper()
		m.Step(e, at(second))
		if got := m.Misplaced(); got != want {
			t.Errorf("after %T: %q, want %q", e, got, want)
		}
	}
	const other = "a process runs but listens on 9000; targetPort is 6379: correct spec.targetPort"
	step(0, WakeAsked{Parked: 1}, "")
	step(2, Sockets{1, nil}, "")
	step(4, Sockets{1, socketsAt("0.0.0.0:9000")}, other)
	step(5, Listening{Ref: 1, At: at(5)}, "")
	step(6, Sockets{1, socketsAt("0.0.0.0:9000")}, "") // it was late
	step(7, Deaf{Ref: 1}, "")
	step(9, Sockets{1, socketsAt("0.0.0.0:9000")}, other)
	step(10, Unready{Ref: 1, At: at(10)}, "")
}
