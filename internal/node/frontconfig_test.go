// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"wangell.loutres.me/internal/node/cri/critest"
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
