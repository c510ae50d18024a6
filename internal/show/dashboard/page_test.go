// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/status"
	"wangell.loutres.me/test/testutil/browser"
)

// manyServices is a source with 1,000 services that all have connections, one of them with 200 pods, one with a few
// pods and wakes, one that balances requests, and one that has failed.
func manyServices() *fakeSource {
	var all []status.Status
	for i := range 998 {
		switch {
		case i%10 == 0:
			all = append(all, cold(fmt.Sprintf("app-%03d", i), time.Now().Add(-time.Duration(i)*time.Minute)))
		default:
			all = append(all, warm(fmt.Sprintf("app-%03d", i), 1))
		}
	}
	broken := cold("broken", time.Time{})
	broken.Service.Status.State = lifecycle.Failed.String()
	broken.Service.Status.Message = `image "registry.example/broken:v1": not found in registry (pull 404)`
	api := warm("api", 3)
	api.Service.Spec.Balancing = &v1alpha1.Balancing{Level: v1alpha1.LevelRequest}
	all = append(all, warm("web", 5), warm("crowd", 200), broken, api)
	f := newFake(all...)
	f.wakes = []lifecycle.Waterfall{woken("default/web", 1, 1), woken("default/web", 2, 1.3), {
		Service: "default/broken", Number: 1, Start: time.Now(), Result: lifecycle.ResultFailed, Parked: 1,
		Reason: broken.Service.Status.Message,
		Phases: []lifecycle.Phase{{Name: lifecycle.PhaseSYNSeen}, {Name: lifecycle.PhaseTold, At: 90 * time.Microsecond},
			{Name: lifecycle.PhaseHandled, At: 300 * time.Microsecond}},
	}}
	for i := range f.services {
		for k := range f.wakes {
			if w := &f.wakes[k]; w.Service == "default/"+f.services[i].Service.Name {
				f.services[i].LastWake = w
			}
		}
	}
	f.step = busy
	return f
}

func TestPageInChromium(t *testing.T) {
	browser.Need(t)
	source := manyServices()
	source.gates = []status.Gate{
		{
			Node: "node-0", Counters: map[string]uint64{"arp_replies": 17, "pings": 3, "bad_rst": 0}, Parked: 2,
			Interfaces: map[string]string{"eth0": "native"},
			Tables: []status.GateTable{
				{Name: "flows", Used: 61234, Size: 262144}, {Name: "services", Used: 1002, Size: 1024},
				{Name: "parked", Used: 2, Size: 65536},
			},
		},
		{
			Node: "node-1", Counters: map[string]uint64{"bad_encap": 5}, Interfaces: map[string]string{"eth9": "generic"},
			Tables: []status.GateTable{{Name: "flows", Used: 131072, Size: 262144}},
		},
		{Node: "node-2", Silent: true, Tables: []status.GateTable{}},
	}
	source.connections = status.Connections{Most: []status.ConnectionsOf{
		connected("192.0.2.7", "default/web", 12), connected("192.0.2.8", "default/web", 4),
		connected("192.0.2.7", "default/crowd", 3), connected("2001:db8::5", "default/crowd", 1),
	}, Others: 9, Silent: []string{"node-2"}}
	d := New(Config{Source: source, Version: "v0-test"})
	defer d.Close()
	l, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	guard := NewGuard(d.Handler(true), l.Addr())
	server := NewServer(guard, slog.New(slog.DiscardHandler))
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	if hold, err := time.ParseDuration(os.Getenv("WANGELL_TEST_HOLD")); err == nil { // to look at it
		fmt.Println(guard.URL())
		time.Sleep(hold)
	}
	browser.Run(t, nil, "page.test.mjs", "DASHBOARD_URL="+guard.URL())
}

func connected(client, service string, open uint64) status.ConnectionsOf {
	return status.ConnectionsOf{Client: netip.MustParseAddr(client), Service: service, Open: open}
}
