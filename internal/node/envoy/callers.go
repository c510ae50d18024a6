// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"fmt"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	datalog "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	cel "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpclog "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	router "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	logservice "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Caller is a request that has waited for a pod and gets one now.
type Caller struct {
	// Service is the name of the service.
	Service string
	// Trace is the span of the client, from the header traceparent (W3C Trace Context, level 1).
	Trace trace.SpanContext
}

// traceparent is the header of requests that belong to a trace.
const traceparent = "traceparent"

// reportCallers makes Envoy report requests with a trace as soon as their connection to the service address is open.
// Other requests, which go to a pod at once, are not reported.
func reportCallers(s *Service, r *router.Router) {
	r.UpstreamLogOptions = &router.Router_UpstreamAccessLogOptions{FlushUpstreamLogOnUpstreamStream: true}
	r.UpstreamLog = []*accesslog.AccessLog{{
		Name: "envoy.access_loggers.http_grpc",
		Filter: &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_AndFilter{
			AndFilter: &accesslog.AndFilter{Filters: []*accesslog.AccessLogFilter{
				{FilterSpecifier: &accesslog.AccessLogFilter_LogTypeFilter{LogTypeFilter: &accesslog.LogTypeFilter{
					Types: []datalog.AccessLogType{datalog.AccessLogType_UpstreamPoolReady},
				}}},
				{FilterSpecifier: &accesslog.AccessLogFilter_HeaderFilter{HeaderFilter: &accesslog.HeaderFilter{
					Header: &route.HeaderMatcher{
						Name:                 traceparent,
						HeaderMatchSpecifier: &route.HeaderMatcher_PresentMatch{PresentMatch: true},
					},
				}}},
				{FilterSpecifier: &accesslog.AccessLogFilter_ExtensionFilter{ExtensionFilter: &accesslog.ExtensionFilter{
					Name: "envoy.access_loggers.extension_filters.cel",
					ConfigType: &accesslog.ExtensionFilter_TypedConfig{TypedConfig: pack(&cel.ExpressionFilter{
						Expression: fmt.Sprintf("upstream.address == %q", s.Addr),
					})},
				}}},
			}},
		}},
		ConfigType: &accesslog.AccessLog_TypedConfig{TypedConfig: pack(&grpclog.HttpGrpcAccessLogConfig{
			CommonConfig: &grpclog.CommonGrpcAccessLogConfig{
				LogName: s.Name, TransportApiVersion: core.ApiVersion_V3, BufferSizeBytes: wrapperspb.UInt32(0), // at once
				GrpcService: &core.GrpcService{TargetSpecifier: &core.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &core.GrpcService_EnvoyGrpc{ClusterName: xdsCluster},
				}},
			},
			AdditionalRequestHeadersToLog: []string{traceparent},
		})},
	}}
}

// callers takes what reportCallers makes Envoy report.
type callers struct {
	logservice.UnimplementedAccessLogServiceServer
	called func(Caller)
}

// StreamAccessLogs receives the callers of one service until Envoy is gone.
func (c *callers) StreamAccessLogs(st logservice.AccessLogService_StreamAccessLogsServer) error {
	service := ""
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if id := m.GetIdentifier(); id != nil { // in the first message
			service = id.GetLogName()
		}
		for _, e := range m.GetHttpLogs().GetLogEntry() {
			parent := traceOf(e.GetRequest().GetRequestHeaders()[traceparent])
			if c.called != nil && parent.IsValid() {
				c.called(Caller{Service: service, Trace: parent})
			}
		}
	}
}

// traceOf parses the header traceparent; the result is invalid if the header is.
func traceOf(header string) trace.SpanContext {
	carrier := propagation.MapCarrier{traceparent: header}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}
