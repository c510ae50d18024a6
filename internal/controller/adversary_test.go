// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// victim is what a stolen node names in its messages although it is not its own.
type victim struct {
	service netip.AddrPort // has a pod, on n1
	pod     uint64
	uid     string
	image   string
	node    netip.Addr // n1's address
}

// attacks are what a daemon with the key of the node "stolen" sends of a service whose only pod is on n1, by type. A
// type that daemons send and that has no entry fails the test: whoever adds a message decides here what it is worth.
var attacks = map[wire.Type]func(v victim) []wire.Message{
	wire.TypeNode: func(v victim) []wire.Message { return []wire.Message{&wire.Node{Addr: v.node}} },
	wire.TypeTagReady: func(victim) []wire.Message {
		return []wire.Message{&wire.TagReady{}, &wire.TagReady{First: 1 << 60}}
	},
	wire.TypePodReport: func(v victim) (all []wire.Message) {
		for e := runtime.PodNetworkReady; e <= runtime.PodNetworkGone; e++ {
			all = append(all, &wire.PodReport{
				Event: uint8(e), Service: "default/a", UID: v.uid, Name: v.uid, Addr: netip.MustParseAddr("10.9.9.9"),
				Netns: "/ns/x", SpecHash: "h", At: monotime.Now(), Code: 1,
			})
		}
		return all
	},
	// The runtime compares the node with the pod's.
	wire.TypePodLog: func(v victim) []wire.Message {
		return []wire.Message{&wire.PodLog{UID: v.uid, Container: "a", Text: "it says so"}}
	},
	wire.TypeListening: func(v victim) []wire.Message {
		return []wire.Message{&wire.Listening{Service: v.service, PodID: v.pod, At: monotime.Now()}}
	},
	wire.TypeUnready: func(v victim) []wire.Message {
		return []wire.Message{&wire.Unready{Service: v.service, PodID: v.pod, At: monotime.Now(), Failed: true}}
	},
	wire.TypeSockets: func(v victim) []wire.Message {
		return []wire.Message{&wire.Sockets{Service: v.service, PodID: v.pod, At: []netip.AddrPort{v.service}}}
	},
	wire.TypeDeaf: func(v victim) []wire.Message {
		return []wire.Message{&wire.Deaf{Service: v.service, PodID: v.pod, At: monotime.Now()}}
	},
	// An edge node reports when it released SYNs, of any pod: only the waterfall of a wake shows it.
	wire.TypeTrace: func(v victim) []wire.Message {
		return []wire.Message{&wire.Trace{Service: v.service, PodID: v.pod, Released: monotime.Now(), ReleasedN: 99}}
	},
	wire.TypeStats: func(v victim) []wire.Message {
		return []wire.Message{&wire.Stats{Pods: []wire.PodStats{{
			Service: v.service, PodID: v.pod, OpenFlows: 99, NewFlows: 99, BytesIn: 99, LastPacket: monotime.Now(),
		}}}}
	},
	wire.TypeIdle: func(v victim) []wire.Message {
		return []wire.Message{&wire.Idle{Service: v.service, LastPacket: 1}}
	},
	wire.TypeQuiet: func(v victim) []wire.Message {
		return []wire.Message{&wire.Quiet{Service: v.service, PodID: v.pod, Generation: 1 << 60, LastPacket: 1}}
	},
	wire.TypeUsage: func(v victim) []wire.Message {
		return []wire.Message{&wire.Usage{Pods: []wire.PodUsage{{
			Service: v.service, PodID: v.pod, CPU: 1 << 60, Memory: 1 << 60, At: monotime.Now(),
		}}}}
	},
	wire.TypeLoads: func(v victim) []wire.Message {
		return []wire.Message{&wire.Loads{Pods: []wire.PodLoad{{Service: v.service, PodID: v.pod, OpenFlows: 9999}}}}
	},
	// An edge node counts the requests that came through it, of any pod.
	wire.TypeAnswers: func(v victim) []wire.Message {
		return []wire.Message{&wire.Answers{At: monotime.Now(), Pods: []wire.PodAnswers{{Service: v.service, PodID: v.pod}}}}
	},
	wire.TypeFrozen: func(v victim) []wire.Message {
		return []wire.Message{&wire.Frozen{Service: v.service, PodID: v.pod, Seq: 1 << 60, Frozen: true, At: monotime.Now()}}
	},
	wire.TypeUnreadable: func(v victim) []wire.Message {
		return []wire.Message{&wire.Unreadable{UID: v.uid, Cause: "it says so"}}
	},
	wire.TypeMemory: func(victim) []wire.Message { return []wire.Message{&wire.Memory{Available: 1, Total: 1 << 30}} },
	// Refusals and scarce tables are what a gate says of itself: they show in messages and change nothing.
	wire.TypeDenied: func(v victim) []wire.Message {
		return []wire.Message{&wire.Denied{Service: v.service, Total: 9, Source: netip.MustParseAddr("192.0.2.200")}}
	},
	wire.TypeAlert: func(v victim) []wire.Message {
		return []wire.Message{&wire.Alert{
			Kind: wire.AlertServiceFlows, Service: v.service, Used: 9, Size: 10,
		}}
	},
	wire.TypeImageReports: func(v victim) []wire.Message {
		return []wire.Message{&wire.ImageReports{Images: []wire.ImageReport{{
			Ref: v.image, State: wire.ImageFailed, Reason: "NotFound", Message: "gone",
		}}}}
	},
	wire.TypeImagePulled: func(v victim) []wire.Message {
		return []wire.Message{&wire.ImagePulled{Ref: v.image, Done: 1, Total: 1 << 60}}
	},
	wire.TypeMirror: func(v victim) []wire.Message {
		return []wire.Message{&wire.Mirror{Addr: netip.AddrPortFrom(v.node, 7948)}}
	},
	wire.TypeBlobs: func(victim) []wire.Message {
		return []wire.Message{&wire.Blobs{Repository: "registry.example/a", Blobs: []wire.Blob{{
			Digest: wire.BlobDigest{9}, Size: blobSize, State: wire.BlobComplete,
		}}}}
	},
	wire.TypeGateState: func(victim) []wire.Message { return []wire.Message{&wire.GateState{Number: 1}} },
	wire.TypeConnected: func(v victim) []wire.Message {
		return []wire.Message{&wire.Connected{Number: 1, Pairs: []wire.ConnectedPair{{
			Client: netip.MustParseAddr("192.0.2.201"), Service: v.service, Open: 1 << 30,
		}}}}
	},
	// A trace context of a client's request: without tracing it goes nowhere.
	wire.TypeCaller: func(v victim) []wire.Message {
		return []wire.Message{&wire.Caller{Service: v.service, TraceID: [16]byte{1}, SpanID: [8]byte{1}}}
	},
	// Any node wakes any service for its clients: it is what the node is for.
	wire.TypeWake: func(v victim) []wire.Message {
		return []wire.Message{&wire.Wake{Service: v.service, Seq: 1 << 60, SYNSeen: monotime.Now(), Parked: 1}}
	},
}

// warmAndCold makes the service a, which has a pod on n1, and b, which sleeps.
func (w *clusterWorld) warmAndCold() (warm, cold netip.AddrPort) {
	w.t.Helper()
	w.synced()
	warm = w.put(newService("a"), 1)
	cold = w.put(newService("b"), 2)
	w.d.syn(warm)
	w.untilState("a", "Warm")
	w.untilPods(warm, " serving")
	return warm, cold
}

// A stolen node is worth one node: whatever its daemon sends of other nodes' pods, services stay as they are, and
// other nodes hear nothing of it.
func TestStolenNodeIsWorthOneNode(t *testing.T) {
	w := newCluster(t, func(c *fakeCluster) {
		c.addrs = map[string][]netip.Addr{
			"n1": {nodeAddr("n1")}, "n2": {nodeAddr("n2")}, "stolen": {netip.MustParseAddr("192.0.2.66")},
		}
	})
	service, other := w.warmAndCold()
	w.d.send(mirrorOf("n1", 1))
	b := w.d.backend(service, 0)
	v := victim{service: service, pod: b.PodID, uid: "a-1", image: "registry.example/a:1", node: nodeAddr("n1")}
	stolen := w.daemonOn("stolen", &wire.Node{Addr: netip.MustParseAddr("192.0.2.66")})
	t.Cleanup(func() { stolen.client.Close() })
	w.until("the stolen node is a member", func() bool { return len(infosOf(w.d)) == 3 })
	before := w.status("a")

	for _, kind := range wire.Types() {
		attack := attacks[kind]
		switch {
		case !kind.FromDaemon() && attack != nil:
			t.Errorf("%v comes from no daemon", kind)
		case kind.FromDaemon() && attack == nil:
			t.Errorf("%v has no attack: add one, and say what a stolen node can do with the message", kind)
		case attack != nil:
			for _, m := range attack(v) {
				stolen.send(m)
			}
		}
	}
	stolen.syn(other) // comes after them
	w.until("all is handled", func() bool { return w.state("b") == "Warm" })

	after := w.status("a")
	if after.Service.Status.State != "Warm" || len(after.Pods) != 1 || after.Pods[0].ID != before.Pods[0].ID ||
		after.Pods[0].Node != "n1" || after.Pods[0].State != "serving" || after.Pods[0].Frozen != nil {
		t.Errorf("state %s, pods %+v", after.Service.Status.State, after.Pods)
	}
	if after.Traffic.OpenFlows != before.Traffic.OpenFlows || after.Traffic.NewFlows != before.Traffic.NewFlows ||
		after.Traffic.BytesIn != before.Traffic.BytesIn {
		t.Errorf("traffic %+v, before %+v", after.Traffic, before.Traffic)
	}
	if len(after.Service.Status.ImageDigests) != 0 {
		t.Errorf("digests %+v", after.Service.Status.ImageDigests)
	}
	running, _, stopped := w.rt.state()
	if len(stopped) != 0 || !slices.Contains(running, v.uid) {
		t.Errorf("running %v, stopped %v", running, stopped)
	}
	w.cluster.mu.Lock()
	for _, r := range w.cluster.saw {
		if r.Pod.Node != "stolen" || r.Pod.NodeAddr != netip.MustParseAddr("192.0.2.66") {
			t.Errorf("the runtime is told of %+v as of another node", r)
		}
	}
	w.cluster.mu.Unlock()
	for _, d := range []*fakeDaemon{w.d, w.d2} {
		d.mu.Lock()
		if got := d.backends[service]; states(got) != " serving" || got.Pods[0].NodeAddr != nodeAddr("n1") {
			t.Errorf("%s has pods %+v", d.node, got)
		}
		if d.loads[v.pod] == 9999 {
			t.Errorf("%s has loads from the stolen node", d.node)
		}
		d.mu.Unlock()
		for _, n := range infosOf(d) {
			if want := map[string]netip.Addr{"n1": nodeAddr("n1"), "n2": nodeAddr("n2"),
				"stolen": netip.MustParseAddr("192.0.2.66")}[n.Name]; n.Addr != want {
				t.Errorf("%s has node %+v", d.node, n)
			}
		}
	}
}

// A report of a pod that there is not gives that daemon the list of pods, and has the controller send the others
// nothing: otherwise one node could keep all of them busy.
func TestReportsOfInventedPodsReachNoOtherNode(t *testing.T) {
	w := newCluster(t, nil)
	service, other := w.warmAndCold()
	b := w.d.backend(service, 0)
	stolen := w.daemonOn("stolen", &wire.Node{Addr: nodeAddr("stolen")})
	t.Cleanup(func() { stolen.client.Close() })
	w.until("it has the pods", func() bool { return stolen.pods(service) == " serving" })
	stolen.set(func(d *fakeDaemon) { delete(d.backends, service) })
	heard := func(d *fakeDaemon) int {
		d.mu.Lock()
		defer d.mu.Unlock()
		n := 0
		for _, h := range d.history {
			if strings.HasPrefix(h, service.String()) {
				n++
			}
		}
		return n
	}
	before := []int{heard(w.d), heard(w.d2)}
	for i := range uint64(100) {
		stolen.send(&wire.Listening{Service: service, PodID: b.PodID + 1000 + i, At: monotime.Now()})
		stolen.send(&wire.Stats{Pods: []wire.PodStats{{Service: service, PodID: b.PodID + 1000 + i}}})
		stolen.send(&wire.Answers{At: monotime.Now(), Pods: []wire.PodAnswers{{
			Service: service, PodID: b.PodID + 1000 + i,
		}}})
	}
	stolen.syn(other) // comes after them
	w.until("all is handled", func() bool { return w.state("b") == "Warm" })
	w.untilPods(other, " serving")
	if after := []int{heard(w.d), heard(w.d2)}; !slices.Equal(after, before) {
		t.Errorf("the other nodes heard of the pods %v times, before %v", after, before)
	}
	w.until("the asker gets the list", func() bool { return stolen.pods(service) == " serving" })
}
