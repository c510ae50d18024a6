// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/wire"
)

func TestRequestsOfAllNodesAreAddedUp(t *testing.T) {
	const second = monotime.Time(time.Second)
	var a answers
	report := func(node string, at monotime.Time, started uint64, open uint32) uint64 {
		t.Helper()
		more, answered, failed := a.add(node, at, wire.PodAnswers{
			Started: started, Open: open, Answered: [wire.Classes]uint64{2: started},
		})
		if more != answered || failed != 0 {
			t.Errorf("%d started, %d answered, %d failed", more, answered, failed)
		}
		return more
	}
	if n := report("n1", 10*second, 5, 1); n != 5 {
		t.Errorf("first report: %d", n)
	}
	report("n2", 10*second, 7, 2)
	if n := report("n1", 11*second, 25, 3); n != 20 {
		t.Errorf("next report: %d", n)
	}
	if n := report("n1", 10*second, 6, 9); n != 0 { // it was overtaken
		t.Errorf("old report: %d", n)
	}
	if n := report("n1", 11*second, 25, 3); n != 0 { // it came twice
		t.Errorf("same report: %d", n)
	}
	if got := a.rate(11 * second); got != 27 { // 20 and 7
		t.Errorf("%v requests/s", got)
	}
	if got := a.rate(30 * second); got != 0 {
		t.Errorf("%v requests/s without reports", got)
	}
	if n := report("n2", 12*second, 3, 0); n != 3 { // the daemon was restarted
		t.Errorf("after a restart: %d", n)
	}
	if a.open() != 3 || a.sum.Started != 35 || a.sum.Answered[2] != 35 {
		t.Errorf("%d open, %+v", a.open(), a.sum)
	}
	// What changes after a pause has happened in the last second.
	report("n1", 60*second, 65, 0)
	if got := a.rate(60 * second); got != 40 {
		t.Errorf("%v requests/s after a pause, want 40", got)
	}
	report("n1", 61*second, 65, 4)
	a.forgetOpen("n1")
	if a.open() != 0 {
		t.Errorf("%d open through a node that has left", a.open())
	}
}

func TestRequestsAreExportedByPodAndClass(t *testing.T) {
	w := newWorld(t, nil)
	spec := newService("a")
	spec.Spec.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
	w.apply(spec, newService("b"))
	a := w.warm("a")
	w.d.send(&wire.Stats{Pods: []wire.PodStats{{Service: a, PodID: wireID("a-1"), LastPacket: monotime.Now()}}})
	w.d.send(&wire.Answers{At: monotime.Now(), Pods: []wire.PodAnswers{
		{Service: a, PodID: wireID("a-1"), Open: 2, Started: 12, Answered: [wire.Classes]uint64{1, 0, 6, 0, 2, 1}},
		{Service: a, Open: 4, Answered: [wire.Classes]uint64{5: 3}},
		{Service: a, PodID: 12345, Started: 99}, // there is none
	}})
	w.until("counted", func() bool {
		st := w.status("a")
		return st.Traffic.Requests == 15 && st.Traffic.OpenRequests == 6 && st.Pods[0].Traffic.Requests == 12 &&
			!st.Service.Status.LatestRequest.IsZero()
	})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(w.c.Collector())
	const want = `
# HELP wangell_open_requests Requests that are not answered yet, where requests are balanced. Those without a pod wait.
# TYPE wangell_open_requests gauge
wangell_open_requests{namespace="default",pod="",service="a"} 4
wangell_open_requests{namespace="default",pod="a-1",service="a"} 2
# HELP wangell_requests_total Requests that have ended, by class of the status code, where requests are balanced.
# TYPE wangell_requests_total counter
wangell_requests_total{code="1xx",namespace="default",pod="",service="a"} 0
wangell_requests_total{code="1xx",namespace="default",pod="a-1",service="a"} 0
wangell_requests_total{code="2xx",namespace="default",pod="",service="a"} 0
wangell_requests_total{code="2xx",namespace="default",pod="a-1",service="a"} 6
wangell_requests_total{code="3xx",namespace="default",pod="",service="a"} 0
wangell_requests_total{code="3xx",namespace="default",pod="a-1",service="a"} 0
wangell_requests_total{code="4xx",namespace="default",pod="",service="a"} 0
wangell_requests_total{code="4xx",namespace="default",pod="a-1",service="a"} 2
wangell_requests_total{code="5xx",namespace="default",pod="",service="a"} 3
wangell_requests_total{code="5xx",namespace="default",pod="a-1",service="a"} 1
wangell_requests_total{code="none",namespace="default",pod="",service="a"} 0
wangell_requests_total{code="none",namespace="default",pod="a-1",service="a"} 1
`
	err := testutil.GatherAndCompare(reg, strings.NewReader(want), "wangell_open_requests", "wangell_requests_total")
	if err != nil {
		t.Error(err)
	}
}
