// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpoint "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadstats "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	metrics "github.com/envoyproxy/go-control-plane/envoy/service/metrics/v3"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Classes is the number of classes of answers: 1 to 5 are those of status codes, 0 is for requests that got none.
const Classes = 6

// Requests counts the requests of a pod, or those of a service without a pod, since the last report.
type Requests struct {
	// From is the address of the Envoy.
	From netip.Addr
	// Service is the name of the service.
	Service string
	// Pod is where the pod listens; invalid if the requests have no pod: they wait, or the service address or Envoy
	// itself has answered them, or they are upgraded.
	Pod netip.AddrPort
	// Started is the number of requests sent to the pod. A repeated request counts at each pod.
	Started uint64
	// Answered is the number of requests that have ended, by the class of the answer.
	Answered [Classes]uint64
	// Open is the number of requests now at the pod, or waiting. It is nil if this report does not include it. Connections
	// that go upgraded through the service address count only while they wait.
	Open *uint32
}

// reports takes what Envoy reports.
type reports struct {
	metrics.UnimplementedMetricsServiceServer
	loadstats.UnimplementedLoadReportingServiceServer
	report  func([]Requests)
	flushed func(from netip.Addr, at int64) // called for each part of a report of statistics, with its time stamp
}

// pass passes a report of an Envoy on.
func (r *reports) pass(from netip.Addr, list []Requests) {
	for i := range list {
		list[i].From = from
	}
	if r.report != nil && len(list) > 0 {
		r.report(list)
	}
}

// StreamLoadStats receives the loads of pods until Envoy is gone. Envoy waits for an answer before it reports.
func (r *reports) StreamLoadStats(st loadstats.LoadReportingService_StreamLoadStatsServer) error {
	first, err := st.Recv()
	if err != nil {
		return err
	}
	from := proxyOf(first.GetNode()).Addr
	if err := st.Send(&loadstats.LoadStatsResponse{
		SendAllClusters: true, LoadReportingInterval: durationpb.New(ReportInterval), ReportEndpointGranularity: true,
	}); err != nil {
		return err
	}
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		r.pass(from, loadsOf(m.GetClusterStats()))
	}
}

// StreamMetrics receives answers, and the numbers of waiting requests, until Envoy is gone.
func (r *reports) StreamMetrics(st metrics.MetricsService_StreamMetricsServer) error {
	var from netip.Addr
	for {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if n := m.GetIdentifier().GetNode(); n != nil { // in the first message
			from = proxyOf(n).Addr
		}
		r.pass(from, answersOf(m.GetEnvoyMetrics()))
		r.flushed(from, timeOf(m.GetEnvoyMetrics()))
	}
}

// timeOf returns the time stamp of a report, in milliseconds.
func timeOf(families []*dto.MetricFamily) int64 {
	for _, f := range families {
		for _, m := range f.GetMetric() {
			return m.GetTimestampMs()
		}
	}
	return time.Now().UnixMilli() // it has no value, and so one part
}

// loadsOf returns the loads of pods. Envoy leaves out pods that have none.
func loadsOf(clusters []*endpoint.ClusterStats) (list []Requests) {
	for _, c := range clusters {
		service, ok := strings.CutSuffix(c.GetClusterName(), podsOf(""))
		if !ok {
			continue
		}
		for _, l := range c.GetUpstreamLocalityStats() {
			for _, e := range l.GetUpstreamEndpointStats() {
				if pod := addrOf(e.GetAddress()); pod.IsValid() {
					open := uint32(e.GetTotalRequestsInProgress())
					list = append(list, Requests{Service: service, Pod: pod, Started: e.GetTotalIssuedRequests(), Open: &open})
				}
			}
		}
	}
	return list
}

// addrOf returns an IP address with its port; invalid for any other kind of address.
func addrOf(a *core.Address) netip.AddrPort {
	ip, err := netip.ParseAddr(a.GetSocketAddress().GetAddress())
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip, uint16(a.GetSocketAddress().GetPortValue()))
}

// answersOf returns the requests that have ended, and for each service those that wait.
func answersOf(families []*dto.MetricFamily) (list []Requests) {
	waiting := map[string]uint32{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case answersStat:
				if r, ok := answerOf(m); ok {
					list = append(list, r)
				}
			case "cluster." + pendingStat:
				name := label(m, "envoy.cluster_name")
				for _, suffix := range []string{podsOf(""), wakeOf(""), tunnelsOf("")} {
					if service, ok := strings.CutSuffix(name, suffix); ok {
						waiting[service] += uint32(m.GetGauge().GetValue())
					}
				}
			}
		}
	}
	for service, n := range waiting {
		list = append(list, Requests{Service: service, Open: &n})
	}
	return list
}

// answerOf returns the answers in a counter; ok is false if there were none.
func answerOf(m *dto.Metric) (r Requests, ok bool) {
	n := uint64(m.GetCounter().GetValue())
	if n == 0 {
		return r, false
	}
	code, _ := strconv.ParseUint(label(m, codeTag), 10, 16) // "-" if there was no answer
	class := code / 100
	if class >= Classes {
		class = 0
	}
	r.Service = strings.TrimSuffix(label(m, serviceTag), upgradesOf(""))
	r.Pod, _ = netip.ParseAddrPort(label(m, podTag)) // "-" if it got to none
	r.Answered[class] = n
	return r, true
}

// label returns the value of a label.
func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}
