// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	logservice "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadstats "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	metrics "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Envoy's main thread answers pings. One that has not done so for pingTimeout hangs, and counts as gone.
const (
	pingInterval = 2 * time.Second
	pingTimeout  = 2 * time.Second
)

// Config configures a Server.
type Config struct {
	// Socket is the path of the unix socket on which the Server listens. An old one is replaced.
	Socket string
	// Owner is the user and group of the socket, which only that user may use. If it is 0, the group may as well, so
	// that Envoy need not be root, and this process needs no right to give files away.
	Owner int
	// Connected is called when an Envoy has connected, with a context that ends when it is gone. It gets its resources
	// once Connected returns and there was a Set.
	Connected func(ctx context.Context, p Proxy)
	// Requests is called with what Envoy reports, every ReportInterval. It must not block. Optional.
	Requests func([]Requests)
	// Called is called with each request of a trace that has waited for a pod and gets one. It must not block.
	// Optional.
	Called func(Caller)
	Log    *slog.Logger
}

// Server gives Envoy its resources over xDS: the aggregated, incremental stream (envoy: docs/api-docs/xds_protocol).
// Its clients are the Envoy of this node, and its predecessors and successor, which have other addresses. One that
// was restarted at the same address may overlap its predecessor.
type Server struct {
	cfg     Config
	grpc    *grpc.Server
	served  chan struct{}
	content content
	acks    acks
}

// Serve starts a server, which has no service yet. It answers nothing until the first Set.
func Serve(cfg Config) (*Server, error) {
	if err := os.MkdirAll(filepath.Dir(cfg.Socket), 0o750); err != nil {
		return nil, fmt.Errorf("socket for Envoy: %w", err)
	}
	if err := os.Remove(cfg.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("socket for Envoy: %w", err)
	}
	l, err := net.Listen("unix", cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("socket for Envoy: %w", err)
	}
	mode := fs.FileMode(0o600)
	if cfg.Owner == 0 {
		mode = 0o660
	}
	if err := errors.Join(os.Chmod(cfg.Socket, mode), os.Chown(cfg.Socket, cfg.Owner, cfg.Owner)); err != nil {
		l.Close()
		return nil, fmt.Errorf("socket for Envoy: %w", err)
	}
	s := &Server{
		cfg: cfg, served: make(chan struct{}), acks: newAcks(cfg.Log),
		grpc: grpc.NewServer(grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout})),
	}
	s.content = newContent(&s.acks)
	discovery.RegisterAggregatedDiscoveryServiceServer(s.grpc, &stream{server: s})
	r := &reports{report: cfg.Requests, flushed: s.acks.flushed}
	loadstats.RegisterLoadReportingServiceServer(s.grpc, r)
	metrics.RegisterMetricsServiceServer(s.grpc, r)
	logservice.RegisterAccessLogServiceServer(s.grpc, &callers{called: cfg.Called})
	go func() {
		defer close(s.served)
		if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			cfg.Log.Error("Envoy no longer gets configuration", "error", err)
		}
	}()
	return s, nil
}

// Close closes the socket and the connection to Envoy, which goes on with its present configuration.
func (s *Server) Close() {
	s.grpc.Stop()
	<-s.served
}

// Set sets the services that Envoy serves. It returns once Envoy is being informed. Envoy listens for the clients of a
// service, and routes their requests elsewhere, once it has the clusters for that: no request is lost meanwhile.
func (s *Server) Set(services []Service) error {
	return s.content.set(services)
}

// Retire makes the Envoy with an address stop listening, or listen again. One that stops listening drains: it goes on
// with the connections that it has, and asks their clients to close them: by "connection: close" in the next answer,
// or GOAWAY. After its drain time it closes them (envoy: docs/intro/arch_overview/operations/draining).
func (s *Server) Retire(at netip.Addr, retired bool) { s.content.retire(at, retired) }

// AwaitPods waits until Envoy has taken over the pods of the latest Set, and before them the routes that no longer lead
// to their services. Pods that are not in it get no new request once Envoy's threads have followed: in the milliseconds
// until then, a request may still reach a removed pod on an existing connection. It returns at once if no Envoy is
// connected, and the error of ctx if Envoy takes longer.
func (s *Server) AwaitPods(ctx context.Context) error { return s.acks.await(ctx) }

// AwaitThreads waits until all threads of Envoy have followed what Envoy had taken over when it was called. That takes
// up to twice ReportInterval. It returns at once if no Envoy is connected, and the error of ctx if Envoy takes longer.
func (s *Server) AwaitThreads(ctx context.Context) error {
	return s.acks.awaitThreads(ctx, s.content.connected)
}

// deltaStream is the stream of one Envoy.
type deltaStream = discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer

// stream serves the streams of Envoys.
type stream struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
}

// DeltaAggregatedResources serves one Envoy until it is gone.
func (h *stream) DeltaAggregatedResources(st deltaStream) error {
	s := h.server
	ctx, cancel := context.WithCancel(st.Context())
	defer cancel()
	caches := &cache.MuxCache{
		ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches: map[string]cache.Cache{
			resource.ClusterType: s.content.clusters, resource.EndpointType: s.content.pods,
		},
	}
	session := newSession(&s.acks, &s.content, func(p Proxy) (*fronts, error) {
		own := s.content.join(p)
		context.AfterFunc(ctx, func() { s.content.leave(own) })
		caches.Caches[resource.ListenerType], caches.Caches[resource.RouteType] = own.listeners, own.routes
		s.cfg.Connected(ctx, p)
		select {
		case <-s.content.ready:
		case <-ctx.Done():
		}
		return own, ctx.Err()
	})
	defer s.acks.end(&session.acked)
	return delta.NewServer(ctx, caches, session).DeltaStreamHandler(st, resource.AnyType)
}
