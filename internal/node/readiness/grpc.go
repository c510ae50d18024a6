// SPDX-License-Identifier: Apache-2.0

package readiness

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/base/buildinfo"
)

// grpc asks the health service (https://github.com/grpc/grpc/blob/master/doc/health-checking.md). It succeeds with
// SERVING.
func (p *Prober) grpc(ctx context.Context, g *corev1.GRPCAction) (bool, string, error) {
	security := insecure.NewCredentials()
	if g.Mode != nil && *g.Mode == corev1.GRPCProbeModeTLS {
		security = credentials.NewTLS(unverified())
	}
	conn, err := grpc.NewClient("passthrough:///"+p.target("", g.Port),
		grpc.WithTransportCredentials(security), grpc.WithUserAgent("wangell-probe/"+buildinfo.Version),
		grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return p.Dial(ctx, "tcp", addr) }))
	if err != nil {
		return false, "", err
	}
	defer conn.Close()
	service := ""
	if g.Service != nil {
		service = *g.Service
	}
	r, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
	if s, isStatus := status.FromError(err); err != nil && isStatus && ctx.Err() == nil {
		return false, s.Code().String() + ": " + s.Message(), nil
	}
	if err != nil {
		return false, "", err
	}
	return r.Status == healthpb.HealthCheckResponse_SERVING, r.Status.String(), nil
}
