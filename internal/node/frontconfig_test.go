// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"path/filepath"
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

// Envoy's pod is Ready once Envoy has its configuration, or has waited for it for 30 s.
func TestEnvoyOfAClusterIsConfiguredBeforeAServiceNeedsIt(t *testing.T) {
	runtime := critest.New(t)
	runtime.Start()
	socket := filepath.Join(t.TempDir(), "xds.sock")
	w := newWorld(t, func(c *Config) { c.CRI, c.CgroupRoot, c.EnvoySocket = runtime.Path, "/sys/fs/cgroup", socket })
	b := w.pod(1)
	runtime.Pod("envoy", "", b.Netns, b.Addr.Addr().String())

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
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetTypeUrl() != kind || len(r.GetResources()) > 0 {
			t.Errorf("asked for %s, got %v", kind, r)
		}
	}
}
