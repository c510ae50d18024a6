// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/sources"
	"wangell.loutres.me/internal/node/cri/critest"
	"wangell.loutres.me/internal/node/envoy"
	"wangell.loutres.me/internal/wire"
)

// logged is a slog.Handler that has got a message.
type logged struct {
	slog.Handler
	message string
	once    sync.Once
	came    chan struct{}
}

func (l *logged) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == l.message {
		l.once.Do(func() { close(l.came) })
	}
	return l.Handler.Handle(ctx, r)
}

// newClusterWorld returns a world of a node of a cluster, its container runtime, and a log that waits for a message.
func newClusterWorld(t *testing.T, message string) (*world, *critest.Runtime, *logged) {
	t.Helper()
	runtime := critest.New(t)
	runtime.Start()
	log := &logged{Handler: slog.Default().Handler(), message: message, came: make(chan struct{})}
	w := newWorld(t, func(c *Config) {
		c.CRI, c.CgroupRoot, c.EnvoySocket, c.Log = runtime.Path, "/sys/fs/cgroup", xdsSocket(runtime), slog.New(log)
	})
	return w, runtime, log
}

// xdsSocket is the daemon's socket for Envoy, beside that of the container runtime.
func xdsSocket(r *critest.Runtime) string { return filepath.Join(filepath.Dir(r.Path), "xds.sock") }

// connectEnvoy connects to the daemon as an Envoy does, and returns its stream and what it says of itself.
func connectEnvoy(t *testing.T, runtime *critest.Runtime, address string) (
	discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, *core.Node,
) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+xdsSocket(runtime), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx,
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	about, err := structpb.NewStruct(map[string]any{"address": address, "pod": "uid-envoy"})
	if err != nil {
		t.Fatal(err)
	}
	return stream, &core.Node{Id: "wangell", Cluster: "wangell", Metadata: about}
}

// accept receives a part of Envoy's configuration and acknowledges it.
func accept(t *testing.T, stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient,
	node *core.Node) []*discovery.Resource {
	t.Helper()
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	ack := &discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
	if err := stream.Send(ack); err != nil {
		t.Fatal(err)
	}
	return r.GetResources()
}

// Envoy's pod is Ready once Envoy has its configuration, or has waited for it for 30 s.
func TestEnvoyOfAClusterIsConfiguredBeforeAServiceNeedsIt(t *testing.T) {
	w, runtime, log := newClusterWorld(t, "cannot use an Envoy; tried again")
	b := w.pod(1)
	stream, node := connectEnvoy(t, runtime, b.Addr.Addr().String())
	for _, kind := range []string{resource.ClusterType, resource.ListenerType} {
		if err := stream.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: kind}); err != nil {
			t.Fatal(err)
		}
		if kind == resource.ClusterType { // the container runtime does not know its pod at first
			select {
			case <-log.came:
			case <-stream.Context().Done():
				t.Fatal("an Envoy without a pod is used")
			}
			runtime.Pod("envoy", "", b.Netns, b.Addr.Addr().String())
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetTypeUrl() != kind || len(r.GetResources()) > 0 {
			t.Errorf("asked for %s, got %v", kind, r)
		}
	}
}

// A service may end while Envoy is being configured for it.
func TestServicesThatEndMeanwhileGetNoFront(t *testing.T) {
	w, runtime, failed := newClusterWorld(t, "cannot balance requests")
	b := w.pod(1)
	runtime.Pod("envoy", "", b.Netns, b.Addr.Addr().String())
	stream, node := connectEnvoy(t, runtime, b.Addr.Addr().String())
	for _, kind := range []string{resource.ClusterType, resource.ListenerType} {
		if err := stream.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: kind}); err != nil {
			t.Fatal(err)
		}
		accept(t, stream, node)
	}
	// A service of each round stays. Once Envoy has its listener, the round was applied.
	const services = 100
	for round := range 10 {
		var list []wire.Service
		var addrs []netip.AddrPort
		for i := range services {
			s := hello(wire.FlagRequests)
			s.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 46, 100, byte(100 + i)}), uint16(1000+round))
			s.Name = fmt.Sprintf("default/r%d-s%d", round, i)
			list, addrs = append(list, s), append(addrs, s.Addr)
		}
		w.table(list)
		w.table(nil, addrs[1:]...)
		for kept := false; !kept; {
			for _, r := range accept(t, stream, node) {
				kept = kept || r.GetName() == list[0].Name
			}
		}
	}
	select {
	case <-failed.came:
		t.Error("Envoy was configured for a service that had ended")
	default:
	}
}

func TestEnvoyHasSettledDownWhileItHasAllClients(t *testing.T) {
	const begin = monotime.Time(1e12)
	a, b := netip.MustParseAddr("10.46.128.1"), netip.MustParseAddr("10.46.128.2")
	var s settled
	check := func(at netip.Addr, all bool, after, want time.Duration, wantOK bool) {
		t.Helper()
		s = s.after(at, all, begin.Add(after))
		if got, ok := s.pause(begin.Add(after)); ok != wantOK || ok && got != want {
			t.Errorf("after %v: %v, %v, want %v, %v", after, got, ok, want, wantOK)
		}
	}
	check(a, false, 0, 0, false)
	check(a, true, time.Second, frontSettles, true)
	check(a, true, 2*time.Second, frontSettles-time.Second, true)
	check(a, true, time.Minute, 0, true)
	check(b, false, 2*time.Minute, 0, false) // another one takes over
	check(b, true, 3*time.Minute, frontSettles, true)
	check(a, true, 4*time.Minute, frontSettles, true) // and is gone
}

func TestYoungestEnvoyServes(t *testing.T) {
	f := newFronts()
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	envoyAt := func(addr string, age time.Duration) proxy {
		p := envoy.Proxy{Addr: netip.MustParseAddr(addr), Created: made.Add(-age)}
		return proxy{Proxy: p, gone: make(chan struct{})}
	}
	serves := func(want netip.Addr) {
		t.Helper()
		all := f.connected()
		if got := all[len(all)-1].Addr; got != want {
			t.Errorf("%v serves, want %v", got, want)
		}
	}
	young, old := envoyAt("10.46.128.2", 0), envoyAt("10.46.128.1", time.Hour)
	f.join(young)
	f.join(old) // after the daemon was restarted, they connect in any order
	serves(young.Addr)
	again := envoyAt("10.46.128.2", 0)
	f.join(again) // restarted in place, while its earlier connection is still open
	if was, left := f.leave(young); was || left != 2 {
		t.Errorf("an earlier connection: %v, %d left", was, left)
	}
	serves(young.Addr)
	for _, p := range []proxy{old, again} {
		if !f.reach(p.Addr) {
			t.Errorf("%v is no front", p.Addr)
		}
	}
	s := wire.Service{Flags: wire.FlagRequests | wire.FlagSources}
	for _, p := range []proxy{old, again} {
		if rules := f.allow(s); !slices.Contains(rules, sources.Rule{Prefix: netip.PrefixFrom(p.Addr, 32), Allow: true}) {
			t.Errorf("%v may not wake the service: %v", p.Addr, rules)
		}
	}
	if was, left := f.leave(again); !was || left != 1 {
		t.Errorf("%v, %d left", was, left)
	}
	serves(old.Addr)
	if was, left := f.leave(old); !was || left != 0 || f.reach(old.Addr) {
		t.Errorf("%v, %d left", was, left)
	}
}

func TestRequestsGoToRevisionsThatAreThere(t *testing.T) {
	const begin = monotime.Time(1e12)
	traffic := func(percent ...uint8) wire.Traffic {
		var list []wire.Revision
		for i, p := range percent {
			list = append(list, wire.Revision{Service: fmt.Sprint("v", i+1), Percent: p, Tag: "tag"})
		}
		return wire.NewTraffic(wire.Sticky{}, list)
	}
	type step struct {
		after  time.Duration // since the begin
		wanted wire.Traffic
		there  string
		want   string
		again  time.Duration
		news   string
	}
	for name, steps := range map[string][]step{
		"all come at once": {
			{0, traffic(90, 10), "v1 v2", "v1 90 v2 10", 0, ""},
			{1, traffic(50, 50), "v1 v2", "v1 50 v2 50", 0, ""},
		},
		"they come one by one": {
			{0, traffic(90, 10), "", "", revisionsWait, ""},
			{time.Second, traffic(90, 10), "v2", "", revisionsWait - time.Second, ""},
			{2 * time.Second, traffic(90, 10), "v1 v2", "v1 90 v2 10", 0, ""},
		},
		"one never comes": {
			{0, traffic(90, 10), "v1", "", revisionsWait, ""},
			{revisionsWait, traffic(90, 10), "v1", "v1 90", 0, "v2"},
			{revisionsWait + 1, traffic(90, 10), "v1", "v1 90", 0, ""},
			{revisionsWait + 2, traffic(90, 10), "v1 v2", "v1 90 v2 10", 0, ""},
		},
		"none comes that gets requests": {
			{0, traffic(100, 0), "v2", "", revisionsWait, ""},
			{revisionsWait, traffic(100, 0), "v2", "", 0, "v1"},
		},
		"one is deleted": {
			{0, traffic(60, 30, 10), "v1 v2 v3", "v1 60 v2 30 v3 10", 0, ""},
			{1, traffic(60, 30, 10), "v2 v3", "v2 30 v3 10", 0, "v1"},
			{2, traffic(60, 30, 10), "v1 v2 v3", "v1 60 v2 30 v3 10", 0, ""},
			{3, traffic(60, 30, 10), "v2 v3", "v2 30 v3 10", 0, "v1"},
			{4, traffic(60, 30, 10), "", "", 0, "v1 v2 v3"},
		},
		"one is added before it is there": {
			{0, traffic(100), "v1", "v1 100", 0, ""},
			{time.Second, traffic(0, 100), "v1", "v1 100", revisionsWait, ""},
			{2 * time.Second, traffic(0, 100), "v1 v2", "v1 0 v2 100", 0, ""},
		},
		"one is added that never comes": {
			{0, traffic(100), "v1", "v1 100", 0, ""},
			{time.Second, traffic(0, 100), "v1", "v1 100", revisionsWait, ""},
			{time.Second + revisionsWait, traffic(0, 100), "v1", "v1 100", 0, "v2"},
			{time.Minute, traffic(50, 50), "v1", "v1 100", revisionsWait, ""},
			{2 * time.Minute, traffic(50, 50), "v1", "v1 50", 0, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var l revisionRouter
			for i, s := range steps {
				there := map[string]bool{}
				for _, v := range strings.Fields(s.there) {
					there[v] = true
				}
				got, again := l.route(s.wanted, there, begin.Add(s.after))
				var to []string
				for _, r := range got.Revisions {
					to = append(to, fmt.Sprint(r.Service, " ", r.Percent))
				}
				news := ""
				if again == 0 {
					news = strings.Join(l.newlyMissing(), " ")
				}
				if text := strings.Join(to, " "); text != s.want || again != s.again || news != s.news {
					t.Errorf("step %d: %q, again %v, news %q, want %q, %v, %q", i, text, again, news, s.want, s.again, s.news)
				}
			}
		})
	}
	adopted := revisionRouter{}
	adopted.adopt()
	there := map[string]bool{"v1": true}
	if got, again := adopted.route(traffic(90, 10), there, begin); len(got.Revisions) != 1 || again > 0 {
		t.Errorf("after the start of another daemon: %+v, again %v", got, again)
	}
	if got, again := adopted.route(traffic(80, 20), there, begin); got.Revisions[0].Percent != 90 ||
		again != revisionsWait {
		t.Errorf("a change after that: %+v, again %v", got, again)
	}
}
