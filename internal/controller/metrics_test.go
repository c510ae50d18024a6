// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

func TestMetricsAreExported(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"))
	a := w.warm("a")
	now := monotime.Now()
	stats := func(flows, in uint64, last monotime.Time) *wire.Stats {
		return &wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("a-1"), OpenFlows: 2, NewFlows: flows,
			BytesIn: in, BytesOut: 10 * in, LastPacket: last}}}
	}
	w.d.send(stats(5, 100, now))
	w.until("counted", func() bool { return w.status("a").Traffic.NewFlows == 5 })
	w.d.send(stats(4, 80, now-1))  // overtaken
	w.d.send(stats(7, 150, now+1)) // +2 flows, +50 bytes
	w.until("counted", func() bool { return w.status("a").Traffic.NewFlows == 7 })
	w.d.send(stats(1, 30, now+2)) // the gate was replaced
	w.until("counted", func() bool { return w.status("a").Traffic.NewFlows == 8 })

	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(w.c.Collector())
	const want = `
# HELP wangell_daemons Connected daemons.
# TYPE wangell_daemons gauge
wangell_daemons 1
# HELP wangell_pods Pods that have not been removed.
# TYPE wangell_pods gauge
wangell_pods 1
# HELP wangell_service_bytes_total IP bytes to (in) and from (out) the pods, by service that has been used.
# TYPE wangell_service_bytes_total counter
wangell_service_bytes_total{direction="in",namespace="default",service="a"} 180
wangell_service_bytes_total{direction="out",namespace="default",service="a"} 1800
# HELP wangell_service_flows_total Connections established, by service that has been used.
# TYPE wangell_service_flows_total counter
wangell_service_flows_total{namespace="default",service="a"} 8
# HELP wangell_service_open_flows Open connections, by service that has been used.
# TYPE wangell_service_open_flows gauge
wangell_service_open_flows{namespace="default",service="a"} 2
# HELP wangell_services Services by state.
# TYPE wangell_services gauge
wangell_services{state="Cold"} 1
wangell_services{state="Failed"} 0
wangell_services{state="Frozen"} 0
wangell_services{state="Stopping"} 0
wangell_services{state="Waking"} 0
wangell_services{state="Warm"} 1
# HELP wangell_wakes_total Wakes that have ended, by result.
# TYPE wangell_wakes_total counter
wangell_wakes_total{result="cancelled"} 0
wangell_wakes_total{result="failed"} 0
wangell_wakes_total{result="warm"} 1
`
	err := testutil.GatherAndCompare(reg, strings.NewReader(want), "wangell_daemons", "wangell_pods",
		"wangell_service_bytes_total",
		"wangell_service_flows_total", "wangell_service_open_flows", "wangell_services", "wangell_wakes_total")
	if err != nil {
		t.Error(err)
	}
	// told, handled, image, sandbox, created, started, listening
	if n := testutil.CollectAndCount(w.c.Collector(), "wangell_wake_phase_seconds"); n != 7 {
		t.Errorf("%d phases have a histogram, want 7", n)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
