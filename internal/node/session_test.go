// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"testing"

	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestKeysOutlastTheDaemon(t *testing.T) {
	dir, asked := t.TempDir(), 0
	keys := enrolment.KeysOf(wire.Key{1}, "n1")
	config := func(node string) *Config {
		return &Config{
			RunDir: dir, Node: node, Log: slog.New(slog.DiscardHandler),
			Enrol: func(context.Context) (enrolment.Keys, error) { asked++; return keys, nil },
		}
	}
	for range 2 {
		c := config("n1")
		if err := c.obtainKeys(t.Context()); err != nil || c.Keys != keys || asked != 1 {
			t.Fatalf("asked %d times: %v", asked, err)
		}
	}
	info, err := os.Stat(keysFile(dir))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	// Another node's keys, and a file that was damaged, are of no use.
	if c := config("n2"); c.obtainKeys(t.Context()) != nil || asked != 2 {
		t.Errorf("asked %d times", asked)
	}
	if err := os.WriteFile(keysFile(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c := config("n2"); c.obtainKeys(t.Context()) != nil || asked != 3 {
		t.Errorf("asked %d times", asked)
	}
	if err := forgetKeys(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(keysFile(dir)); !os.IsNotExist(err) || forgetKeys(dir) != nil {
		t.Error("the keys are still there, or cannot be removed twice")
	}
	if _, err := config("n1").keptKeys(); err == nil || !os.IsNotExist(err) {
		t.Errorf("%v, want %v", err, fs.ErrNotExist)
	}
}

// A daemon that waits for its key is healthy, or it would be restarted, and not ready.
func TestDaemonWithoutAKeyIsHealthyAndNotReady(t *testing.T) {
	sh(t, "ip link set lo up")
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	got := map[string]int{}
	c := &Config{RunDir: t.TempDir(), Node: "n1", MetricsAddress: addr, Log: slog.New(slog.DiscardHandler)}
	c.Enrol = func(context.Context) (enrolment.Keys, error) {
		for _, path := range []string{"/healthz", "/readyz"} {
			r, err := http.Get("http://" + addr + path)
			if err != nil {
				t.Error(err)
				continue
			}
			r.Body.Close()
			got[path] = r.StatusCode
		}
		return enrolment.KeysOf(wire.Key{1}, "n1"), nil
	}
	if err := c.obtainKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got["/healthz"] != http.StatusOK || got["/readyz"] != http.StatusServiceUnavailable {
		t.Errorf("%v", got)
	}
}

func TestPodReportsAreSentAgainInEverySession(t *testing.T) {
	var reports podReports
	var sent []string
	send := func(m wire.Message) {
		r := m.(*wire.PodReport)
		sent = append(sent, fmt.Sprintf("%s %s %s %d", r.UID, r.Netns, r.Container, r.Event))
	}
	expect := func(want ...string) {
		t.Helper()
		if !slices.Equal(sent, want) {
			t.Errorf("sent %q, want %q", sent, want)
		}
		sent = nil
	}
	add := func(uid, netns, container string, event runtime.PodEvent) {
		pod := runtime.Pod{ID: uid, Netns: netns}
		reports.add(runtime.PodReport{Event: event, Pod: pod, Container: container}, send)
	}
	reports.sendAll(send)
	expect()
	add("b", "n1", "", runtime.PodNetworkReady)
	add("b", "n1", "main", runtime.PodContainerCreated)
	add("b", "n1", "main", runtime.PodContainerStarted)
	add("b", "n1", "side", runtime.PodContainerCreated)
	add("a", "n2", "", runtime.PodNetworkReady)
	expect("b n1  1", "b n1 main 2", "b n1 main 3", "b n1 side 2", "a n2  1")
	reports.sendAll(send)
	expect("a n2  1", "b n1  1", "b n1 main 3", "b n1 side 2")
	// The pod gets another network. The end of its first network does not affect the second.
	add("b", "n3", "", runtime.PodNetworkReady)
	add("b", "n1", "main", runtime.PodContainerExited)
	add("b", "n1", "", runtime.PodNetworkGone)
	sent = nil
	reports.sendAll(send)
	expect("a n2  1", "b n3  1")
	add("b", "n3", "", runtime.PodNetworkGone)
	add("a", "n2", "", runtime.PodNetworkGone)
	sent = nil
	reports.sendAll(send)
	expect()
}

func TestDaemonSaysWhatItsGateHoldsAndWhoIsConnected(t *testing.T) {
	w := newWorld(t)
	pod := w.pod(1)
	w.echo(1)
	w.send(&wire.Backends{Service: vip, Generation: 1, Pods: []wire.Backend{pod}})
	await[*wire.Listening](w)
	pod.State = wire.PodServing
	w.send(&wire.Backends{Service: vip, Generation: 2, Pods: []wire.Backend{pod}})
	for range 2 {
		echoes(t, open(t, clientNet, vip))
	}
	w.flowsOf(vip, 2)

	w.send(&wire.Inspect{Number: 5})
	got := await[*wire.GateState](w)
	if got.Number != 5 || !slices.Contains(got.Tables, wire.GateTable{Name: "services", Used: 1, Size: 16384}) ||
		!slices.ContainsFunc(got.Interfaces, func(i wire.GateInterface) bool { return i.Name == "eth0" }) {
		t.Errorf("%+v", got)
	}
	if !slices.ContainsFunc(got.Counters, func(c wire.GateCounter) bool { return c.Name == "arp_replies" }) {
		t.Errorf("counters %+v", got.Counters)
	}
	w.send(&wire.Inspect{Number: 6, Most: 3})
	who := await[*wire.Connected](w)
	want := []wire.ConnectedPair{{Client: netip.MustParseAddr("10.46.200.10"), Service: vip, Open: 2}}
	if who.Number != 6 || who.Others != 0 || !slices.Equal(who.Pairs, want) {
		t.Errorf("%+v, want %+v", who, want)
	}
}
