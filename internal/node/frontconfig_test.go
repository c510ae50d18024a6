// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
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

	"wangell.loutres.me/internal/cri/critest"
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

// Envoy's pod is Ready once Envoy has its configuration, or has waited for it for 30 s.
func TestEnvoyOfAClusterIsConfiguredBeforeAServiceNeedsIt(t *testing.T) {
	runtime := critest.New(t)
	runtime.Start()
	socket := filepath.Join(t.TempDir(), "xds.sock")
	log := &logged{
		Handler: slog.Default().Handler(), message: "cannot use an Envoy; tried again", came: make(chan struct{}),
	}
	w := newWorld(t, func(c *Config) {
		c.CRI, c.CgroupRoot, c.EnvoySocket, c.Log = runtime.Path, "/sys/fs/cgroup", socket, slog.New(log)
	})
	b := w.pod(1)

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx,
		grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	about, err := structpb.NewStruct(map[string]any{"address": b.Addr.Addr().String(), "pod": "uid-envoy"})
	if err != nil {
		t.Fatal(err)
	}
	node := &core.Node{Id: "wangell", Cluster: "wangell", Metadata: about}
	for _, kind := range []string{resource.ClusterType, resource.ListenerType} {
		if err := stream.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: kind}); err != nil {
			t.Fatal(err)
		}
		if kind == resource.ClusterType { // the container runtime does not know its pod at first
			select {
			case <-log.came:
			case <-ctx.Done():
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
