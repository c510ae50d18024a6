// SPDX-License-Identifier: Apache-2.0

package view

import (
	"bytes"
	"regexp"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/status"
)

func TestTopShowsRatesBetweenTwoSamples(t *testing.T) {
	traffic := func(open uint32, flows, in, out uint64) status.Traffic {
		return status.Traffic{OpenFlows: open, NewFlows: flows, BytesIn: in, BytesOut: out}
	}
	pod := func(id string, tr status.Traffic) status.Pod {
		return status.Pod{ID: id, State: "serving", Traffic: tr}
	}
	web, db := named("web", now), named("db", now)
	web.Service.Status.State = "Warm"
	before := Sample{At: now, Services: []status.Status{db, web}}
	before.Services[1].Traffic = traffic(1, 100, 1000, 1000)
	before.Services[1].Pods = []status.Pod{
		pod("web-1", traffic(1, 60, 0, 0)), pod("web-2", traffic(0, 500, 0, 0)),
	}
	after := Sample{At: now.Add(2 * time.Second), Services: []status.Status{db, web}}
	after.Services[1].Traffic = traffic(5, 140, 5000, 4_001_000)
	// The gate of the second one was replaced: its counters began anew.
	after.Services[1].Pods = []status.Pod{
		pod("web-1", traffic(3, 90, 0, 0)), pod("web-2", traffic(2, 10, 0, 0)),
	}
	for order, want := range map[TopOrder]string{
		TopByRate: `SERVICE       STATE     PODS   OPEN   NEW/S   IN/S     OUT/S    BUSIEST/MEAN
default/web   Warm      2      5      20.0    2.0 kB   2.0 MB   1.50
  web-1       serving          3      15.0    0 B      0 B      ` + `
  web-2       serving          2      5.0     0 B      0 B      ` + `
default/db    Cold      0      0      0.0     0 B      0 B      -
`,
		TopByName: `SERVICE       STATE     PODS   OPEN   NEW/S   IN/S     OUT/S    BUSIEST/MEAN
default/db    Cold      0      0      0.0     0 B      0 B      -
default/web   Warm      2      5      20.0    2.0 kB   2.0 MB   1.50
  web-1       serving          3      15.0    0 B      0 B      ` + `
  web-2       serving          2      5.0     0 B      0 B      ` + `
`,
	} {
		var out bytes.Buffer
		if err := Top(&out, Loads(before, after, order)); err != nil || out.String() != want {
			t.Errorf("by %s: %v\n%s\nwant\n%s", order, err, out.String(), want)
		}
	}
}

func TestTopShowsRequestsOfServicesThatBalanceThem(t *testing.T) {
	web, db := named("web", now), named("db", now)
	web.Service.Spec.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
	web.Service.Status.State = "Warm"
	pods := func(a, b uint64) []status.Pod {
		return []status.Pod{
			{ID: "web-1", State: "serving", Traffic: status.Traffic{Requests: a, NewFlows: 9 * a}},
			{ID: "web-2", State: "serving", Traffic: status.Traffic{Requests: b}},
		}
	}
	before := Sample{At: now, Services: []status.Status{db, web}}
	before.Services[1].Pods = pods(0, 0)
	after := Sample{At: now.Add(2 * time.Second), Services: []status.Status{db, web}}
	after.Services[1].Traffic = status.Traffic{OpenFlows: 1, Requests: 400, OpenRequests: 6}
	after.Services[1].Pods = pods(300, 100)
	loads := Loads(before, after, TopByRate)
	if loads[0].Requests == nil || *loads[0].Requests != (RequestLoad{PerSecond: 200, Open: 6}) {
		t.Errorf("%+v", loads[0])
	}
	const want = `SERVICE       STATE     PODS   OPEN   NEW/S    REQ/S   IN/S   OUT/S   BUSIEST/MEAN
default/web   Warm      2      1      0.0      200.0   0 B    0 B     1.50
  web-1       serving          0      1350.0   150.0   0 B    0 B     ` + `
  web-2       serving          0      0.0      50.0    0 B    0 B     ` + `
default/db    Cold      0      0      0.0      -       0 B    0 B     -
`
	var out bytes.Buffer
	if err := Top(&out, loads); err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
	out.Reset()
	web.Traffic.RequestsPerSecond = 12.34
	if err := Services(&out, []status.Status{db, web}, nil, nil, nil, now); err != nil ||
		!regexp.MustCompile(`FLOWS   REQ/S   WAKES`).MatchString(out.String()) ||
		!regexp.MustCompile(`web .* 0       12.3    -`).MatchString(out.String()) ||
		!regexp.MustCompile(`db .* 0       -       -`).MatchString(out.String()) {
		t.Errorf("%v\n%s", err, out.String())
	}
}
