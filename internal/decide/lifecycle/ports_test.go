// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"net/netip"
	"testing"
	"time"
)

// A service with the ports 80, 443 and 9113, which wait a minute.
func threePorts() Spec {
	return Spec{
		Name: "default/web", Port: 8080, More: []Port{{"https", 8443}, {"metrics", 9113}}, WakeTimeout: time.Minute,
		Grace: 30 * time.Second, IdleTimeout: 5 * time.Minute, Max: 2,
	}
}

func TestPortsOfAServiceWakeTogether(t *testing.T) {
	wakes := func(port int) []did {
		return []did{
			{0, WakeAsked{Parked: 1, Port: port}, Waking,
				"start 1 | timer 1m0s | info: wakes: 1 connection request parked"},
			{0.1, NetworkReady{1}, Waking, "publish 1 1:starting"},
		}
	}
	warm := append(wakes(1), // by the second port
		did{0.2, Listening{Ref: 1, At: at(0.2), Port: 1}, Warm,
			"publish 2 1:serving@10 | timer never | info: warm: listens 200.000 ms after the SYN"},
		did{0.3, Listening{Ref: 1, At: at(0.3)}, Warm, "publish 3 1:serving@11"})
	const refused = "clients of port 9113 (metrics) are refused: nothing listens there"
	const none = "process runs but nothing listens on port 8080 for IPv4 after 1m0s: check spec.targetPort, and that " +
		"the process listens on 0.0.0.0 or [::], not on 127.0.0.1 or for IPv6 only"
	given := append(warm[:4:4],
		did{1, WakeAsked{Parked: 1, Port: 2}, Warm, "publish 4 1:serving@11 | timer 1m0.2s"},
		did{60.2, Timer{}, Warm, "refuse @100: " + refused + " | timer never | warn: " + refused})
	for name, steps := range map[string][]did{
		"the port that opens first has no client": append(wakes(1),
			did{0.2, Listening{Ref: 1, At: at(0.2)}, Waking, "publish 2 1:starting@1"},
			did{0.3, Listening{Ref: 1, At: at(0.3), Port: 1}, Warm,
				"publish 3 1:serving@11 | timer never | info: warm: listens 300.000 ms after the SYN"}),
		"a client comes for the port that is open": append(wakes(1),
			did{0.2, Listening{Ref: 1, At: at(0.2)}, Waking, "publish 2 1:starting@1"},
			did{0.3, WakeAsked{Parked: 1}, Warm,
				"publish 3 1:serving@1 | info: warm: listens 300.000 ms after the SYN"},
			did{0.4, Listening{Ref: 1, At: at(0.4), Port: 1}, Warm, "publish 4 1:serving@11 | timer never"}),
		"the port with clients never opens": append(wakes(2),
			did{0.2, Listening{Ref: 1, At: at(0.2)}, Waking, "publish 2 1:starting@1"},
			did{60, Timer{}, Warm, "publish 3 1:serving@1 | refuse @100: " + refused + " | timer never | " +
				"info: warm: listens 60000.000 ms after the SYN | warn: " + refused}),
		"no port opens": append(wakes(2), did{0.2, Started{1}, Waking, ""},
			did{60, Timer{}, Failed, "publish 2 | refuse: " + none + " | stop 1 30s | timer never | error: wake failed: " +
				none}),
		"a port opens later": append(warm[:4:4],
			did{1, WakeAsked{Parked: 1, Port: 2}, Warm, "publish 4 1:serving@11 | timer 1m0.2s"},
			did{2, Listening{Ref: 1, At: at(2), Port: 2}, Warm, "publish 5 1:serving@111 | timer never"}),
		"a port does not open": given,
		"it refuses at once after that": append(given[:6:6],
			did{61, WakeAsked{Parked: 1, Port: 2}, Warm, "publish 5 1:serving@11 | refuse @100: " + refused},
			did{62, Listening{Ref: 1, At: at(62), Port: 2}, Warm, "publish 6 1:serving@111"},
			did{63, WakeAsked{Parked: 1, Port: 2}, Warm, "publish 7 1:serving@111"}),
		"its program listens elsewhere": append(warm[:4:4],
			did{1, Sockets{Ref: 1, At: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9113")}}, Warm, ""},
			did{2, WakeAsked{Parked: 1, Port: 2}, Warm, "publish 4 1:serving@11 | timer 1m0.2s"},
			did{60.2, Timer{}, Warm, "refuse @100: clients of port 9113 (metrics) are refused: a process listens on " +
				"127.0.0.1:9113, not on an address that clients reach | timer never | warn: clients of port 9113 (metrics) " +
				"are refused: a process listens on 127.0.0.1:9113, not on an address that clients reach"}),
		"a client comes long after the start": append(warm[:4:4],
			did{100, WakeAsked{Parked: 1, Port: 2}, Warm, "publish 4 1:serving@11 | refuse @100: " + refused + " | warn: " +
				refused}),
		"clients of two ports wait for the next pod": append(warm[:4:4],
			did{5, SleepAsked{}, Stopping, "publish 4 1:draining@11 | timer 10s"},
			did{6, WakeAsked{Parked: 1, Port: 2}, Stopping, ""}, did{6, WakeAsked{Parked: 1, Port: 1}, Stopping, ""},
			did{7, Quiet{1, 4, at(4), 0}, Waking, "start 2 | stop 1 30s | timer 1m7s | info: sleeps | " +
				"info: wakes: 1 connection request parked"},
			did{8, Listening{Ref: 2, At: at(8), Port: 1}, Warm,
				"publish 5 1:draining@11 2:serving@10 | info: warm: listens 1000.000 ms after the SYN"},
			did{67, Timer{}, Warm, "refuse @100: " + refused + " | timer never | warn: " + refused}),
		"a port closes": append(warm[:4:4],
			did{5, Deaf{Ref: 1}, Warm, "publish 4 1:serving@10 | info: a pod gets no new connections for port 8080: it no " +
				"longer listens there"},
			did{6, Deaf{Ref: 1, Port: 1}, Warm, "publish 5 1:starting | info: a pod gets no new connections: it no longer " +
				"listens on port 8080"},
			did{7, Listening{Ref: 1, At: at(7), Port: 1}, Warm, "publish 6 1:serving@10"}),
	} {
		t.Run(name, func(t *testing.T) {
			m := New(threePorts(), 0)
			for i, d := range steps {
				got := words(m.Step(d.ev, at(d.at)))
				if got != d.want || m.State() != d.state {
					t.Errorf("step %d (%T): %s: %q\nwant %s: %q", i, d.ev, m.State(), got, d.state, d.want)
				}
			}
		})
	}
}
