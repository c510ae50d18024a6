// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"time"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metrics "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	statslog "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	matcher "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	xdstype "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// ReportInterval is the interval at which Envoy reports requests.
	ReportInterval = time.Second
	// forgetAfter is how long Envoy keeps the count of a pod's answers with a code after the last one.
	forgetAfter = 5 * time.Minute
	// maxCounts is the largest number of pods and codes of a service that have counts of their own.
	maxCounts = 10_000
	// reportBatch is the largest number of values in a message, whose limit is 4 MB.
	reportBatch = 2000
)

// The names and tags of Envoy's counters.
const (
	answersStat = "wangell.answers" // ours
	serviceTag  = "service"
	podTag      = "pod"
	codeTag     = "code"
	pendingStat = "upstream_rq_pending_active" // Envoy's; requests that wait for a connection
)

// reportRequests makes Envoy push the data of Requests: the loads of pods by the load reporting service, answers and
// waiting requests as statistics. Other statistics are off: by default, Envoy has some hundred for each service,
// which cost memory, and time for each report (envoy: docs/intro/arch_overview/observability/statistics).
func reportRequests(b *bootstrap.Bootstrap) {
	server := []*core.GrpcService{{TargetSpecifier: &core.GrpcService_EnvoyGrpc_{
		EnvoyGrpc: &core.GrpcService_EnvoyGrpc{ClusterName: xdsCluster},
	}}}
	b.ClusterManager = &bootstrap.ClusterManager{LoadStatsConfig: &core.ApiConfigSource{
		ApiType: core.ApiConfigSource_GRPC, TransportApiVersion: core.ApiVersion_V3, GrpcServices: server,
	}}
	b.StatsConfig = &metrics.StatsConfig{StatsMatcher: &metrics.StatsMatcher{
		StatsMatcher: &metrics.StatsMatcher_InclusionList{InclusionList: &matcher.ListStringMatcher{
			Patterns: []*matcher.StringMatcher{
				{MatchPattern: &matcher.StringMatcher_Contains{Contains: answersStat}},
				{MatchPattern: &matcher.StringMatcher_Suffix{Suffix: podsOf("") + "." + pendingStat}},
				{MatchPattern: &matcher.StringMatcher_Suffix{Suffix: wakeOf("") + "." + pendingStat}},
				{MatchPattern: &matcher.StringMatcher_Suffix{Suffix: tunnelsOf("") + "." + pendingStat}},
			},
		}},
	}}
	b.StatsFlushInterval = durationpb.New(ReportInterval)
	b.StatsEviction = &bootstrap.Bootstrap_StatsEvictionInterval{StatsEvictionInterval: durationpb.New(forgetAfter)}
	b.StatsSinks = []*metrics.StatsSink{{
		Name: "envoy.stat_sinks.metrics_service", ConfigType: &metrics.StatsSink_TypedConfig{
			TypedConfig: pack(&metrics.MetricsServiceConfig{
				GrpcService: server[0], TransportApiVersion: core.ApiVersion_V3,
				ReportCountersAsDeltas: wrapperspb.Bool(true), EmitTagsAsLabels: true, BatchSize: reportBatch,
			}),
		},
	}}
}

// answeredBy is the service for which answers count, as a format of Envoy's access logs: the revision that a request
// went to, which is the name of a cluster, or else the service itself.
func answeredBy(s *Service) string {
	if s.Traffic.Empty() {
		return s.Name
	}
	return "%UPSTREAM_CLUSTER_RAW%"
}

// countAnswers counts the requests of a service as they end, by pod and status code.
func countAnswers(s *Service) []*accesslog.AccessLog {
	return []*accesslog.AccessLog{{
		Name: "envoy.access_loggers.stats", ConfigType: &accesslog.AccessLog_TypedConfig{
			TypedConfig: pack(&statslog.Config{
				StatsScope: &xdstype.Scope{
					Prefix: "wangell", EnableEviction: true, MaxCounters: wrapperspb.UInt32(maxCounts),
				},
				Counters: []*statslog.Config_Counter{{
					Stat: &statslog.Config_Stat{Name: "answers", Tags: []*statslog.Config_Tag{
						{Name: serviceTag, ValueFormat: answeredBy(s)},
						{Name: podTag, ValueFormat: "%UPSTREAM_HOST%"},
						{Name: codeTag, ValueFormat: "%RESPONSE_CODE%"},
					}},
					ValueFixed: wrapperspb.UInt64(1),
				}},
			}),
		},
	}}
}
