// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"fmt"
	"strconv"
	"strings"

	"wangell.loutres.me/internal/lab/cluster"
	"wangell.loutres.me/internal/lab/report"
)

// The names of the reports.
const (
	reportName      = "scaling"
	ratesName       = "scaling-rates"
	replicasName    = "scaling-replicas"
	alternatingName = "scaling-alternating"
	flapName        = "scaling-flap"
)

const howAll = `A cluster of several nodes on one machine, each in namespaces of its own, with a real kubelet, containerd
and kube-proxy. The load server runs in pods of a Deployment behind a Service of type LoadBalancer (kube-proxy) and in pods
of a WangellService, with the same pod template. kube-proxy is restarted in the other mode between measurements, and the
old mode's rules are flushed. While Wangell is measured, kube-proxy runs in one of its modes but is not in the path. Two
modes are not measured: kube-proxy's userspace mode was removed in Kubernetes 1.26, and its IPVS mode, deprecated since
1.35, needs kernel modules that this machine does not have. Clients are in the network namespaces of pods of the first
node. They use the ClusterIP of kube-proxy's Service, which leaves their addresses unchanged, or the service address of
Wangell's. Clients on the LAN are a host outside of the cluster: they use a load balancer address that is routed to the
first node, for which kube-proxy masquerades, or Wangell's service address. Modes are measured in turn, forwards and
backwards. Load generators, nodes and pods share the machine's cores: the numbers compare modes, and do not show what a
mode can do on a machine of its own. `

// newReports makes the report of everything, and one of each part that has samples. The caller adds times, parameters and
// versions.
func newReports(p plan, raw Samples) []*report.Report {
	all := []*report.Report{mainReport(p, raw)}
	if len(raw.Rates) > 0 {
		all = append(all, ratesReport(p, raw.Rates))
	}
	if len(raw.Replicas) > 0 {
		all = append(all, replicasReport(p, raw.Replicas))
	}
	if len(raw.Alternating) > 0 {
		all = append(all, alternatingReport(p, raw.Alternating))
	}
	if len(raw.Flap) > 0 {
		all = append(all, flapReport(p, raw.Flap))
	}
	return all
}

func mainReport(p plan, raw Samples) *report.Report {
	r := &report.Report{
		Name: reportName, Title: "Balancing and scaling: kube-proxy and Wangell side by side", Raw: raw,
		How: howAll + fmt.Sprintf(`The load server is the hello image. Fixed load: ab, %d requests on a connection each, %d
			connections at a time, against %d pods. The other parts have reports of their own.`,
			p.requests, concurrency, fixedReplicas),
		Figure: fixedFigure(p, raw.Fixed),
	}
	if len(raw.Fixed) > 0 {
		r.Summary = fixedSummary(p, raw.Fixed)
		r.Tables = []report.Table{fixedTable(p, raw.Fixed)}
	}
	for _, s := range []report.Summary{
		alternatingSummary(raw.Alternating), ratesSummary(p, raw.Rates), flapSummary(p, raw.Flap),
	} {
		r.Summary = append(r.Summary, s...)
	}
	return r
}

// fixedTimes returns the times of complete runs in a mode.
func fixedTimes(samples []FixedSample, mode string) []float64 {
	return report.Collect(samples, func(s FixedSample) (float64, bool) {
		return s.Seconds, s.Mode == mode && s.Aborted == ""
	})
}

func fixedSummary(p plan, samples []FixedSample) (s report.Summary) {
	for _, mode := range p.modes {
		s = append(s, report.Value{Key: "fixed_mean_s_" + mode, Value: report.Mean(fixedTimes(samples, mode)),
			Meaning: "fixed load, " + mode + ": mean time of a run (s)"})
	}
	for _, mode := range p.modes {
		s = append(s, report.Value{Key: "fixed_stddev_s_" + mode, Value: report.StdDev(fixedTimes(samples, mode)),
			Meaning: "fixed load, " + mode + ": standard deviation (s)"})
	}
	return s
}

func fixedTable(p plan, samples []FixedSample) report.Table {
	t := report.Table{
		Title: fmt.Sprintf("Fixed load: %d requests, %d pods", p.requests, fixedReplicas),
		Header: []string{"mode", "runs", "mean (s)", "standard deviation (s)", "median (s)", "failed requests",
			"aborted runs"},
	}
	for _, mode := range p.modes {
		times, failed, aborted := fixedTimes(samples, mode), 0, 0
		for _, s := range samples {
			if s.Mode == mode {
				failed += s.Lost()
				if s.Aborted != "" {
					aborted++
				}
			}
		}
		t.Rows = append(t.Rows, []string{mode, strconv.Itoa(len(times)), report.Decimal(report.Mean(times)),
			report.Decimal(report.StdDev(times)), report.Decimal(report.Median(times)), strconv.Itoa(failed),
			strconv.Itoa(aborted)})
	}
	return t
}

func ratesReport(p plan, samples []RateSample) *report.Report {
	return &report.Report{
		Name: ratesName, Title: "Short connections, and requests on persistent ones, per second", Raw: samples,
		How: howAll + fmt.Sprintf(`The load server is the hello image. %d clients with different addresses run at the same
			time, with %d connections in all, against %d pods: ab with a connection per request, and wrk with persistent
			connections. The limit, direct, uses no Service: each client asks another pod. The machine's own speed changes
			within seconds by more than the modes differ. So a mode of kube-proxy, Wangell and direct take turns every few
			seconds, and a repetition is the sum of all turns of a mode. For clients on the LAN kube-proxy masquerades, so
			that all connections to a pod come from one address. Ports are reused within a minute, and the pod's kernel
			drops SYNs whose time stamp is older than that of the last connection from there (PAWS). Clients see this as a
			second or more of waiting, and the more the longer a run lasts.`, rateHosts, concurrency, fixedReplicas),
		Summary: ratesSummary(p, samples), Tables: []report.Table{ratesTable(p, samples)}, Figure: ratesFigure(p, samples),
	}
}

func rateValues(samples []RateSample, mode, clients string, keep bool) []float64 {
	return report.Collect(samples, func(s RateSample) (float64, bool) {
		return s.PerSecond, s.Mode == mode && s.Clients == clients && s.KeepAlive == keep
	})
}

func ratesSummary(p plan, samples []RateSample) (s report.Summary) {
	if len(samples) == 0 {
		return nil
	}
	for _, v := range []struct {
		key, clients, what string
		keep               bool
	}{
		{"short_conn_per_s_", cluster.VantagePods, "short connections per second", false},
		{"keepalive_req_per_s_", cluster.VantagePods, "requests per second on persistent connections", true},
		{"lan_short_conn_per_s_", cluster.VantageLAN, "short connections per second, clients on the LAN", false},
		{"lan_keepalive_req_per_s_", cluster.VantageLAN,
			"requests per second on persistent connections, clients on the LAN", true},
	} {
		for _, mode := range withDirect(p.modes) {
			s = append(s, report.Value{Key: v.key + mode, Meaning: v.what + ", " + mode + ": median",
				Value: report.Median(rateValues(samples, mode, v.clients, v.keep))})
		}
	}
	return s
}

func ratesTable(p plan, samples []RateSample) report.Table {
	t := report.Table{
		Title: "Rates (medians of repetitions, per second)",
		Header: []string{"mode", "clients", "short connections", "failed", "requests on persistent connections",
			"failed"},
	}
	for _, clients := range rateClients {
		for _, mode := range withDirect(p.modes) {
			row := []string{mode, clients}
			for _, keep := range []bool{false, true} {
				failed := 0
				for _, s := range samples {
					if s.Mode == mode && s.Clients == clients && s.KeepAlive == keep {
						failed += s.Lost()
					}
				}
				row = append(row, report.Whole(report.Median(rateValues(samples, mode, clients, keep))),
					strconv.Itoa(failed))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

func replicasReport(p plan, samples []ReplicaSample) *report.Report {
	return &report.Report{
		Name: replicasName, Title: "Time of a fixed load by the number of pods", Raw: samples,
		How: howAll + `The load server is the hello image. The last setting is autoscaled, 1 to 3 pods, by the experiment's
			own autoscaler (see the report on alternating load), starting from one pod.`,
		Summary: replicasSummary(p, samples), Tables: replicasTables(p, samples), Figure: replicasFigure(p, samples),
	}
}

func replicaTimes(samples []ReplicaSample, mode string, replicas int) []float64 {
	return report.Collect(samples, func(s ReplicaSample) (float64, bool) {
		return s.Seconds, s.Mode == mode && s.Replicas == replicas && s.Aborted == ""
	})
}

func replicasSummary(p plan, samples []ReplicaSample) (s report.Summary) {
	for _, n := range p.replicas {
		for _, mode := range p.modes {
			key := "replicas_" + strings.ReplaceAll(replicasText(n), "-", "_to_") + "_mean_s_" + mode
			s = append(s, report.Value{Key: key, Value: report.Mean(replicaTimes(samples, mode, n)),
				Meaning: replicasText(n) + " pods, " + mode + ": mean time of a run (s)"})
		}
	}
	return s
}

func replicasTables(p plan, samples []ReplicaSample) []report.Table {
	mean := report.Table{Title: "Mean time of a run (s), by pods", Header: []string{"mode"}}
	for _, n := range p.replicas {
		mean.Header = append(mean.Header, replicasText(n))
	}
	each := report.Table{Title: "Time of each repetition, autoscaled (s)", Header: []string{"mode"}}
	for i := range p.repetitions {
		each.Header = append(each.Header, strconv.Itoa(i+1))
	}
	for _, mode := range p.modes {
		row := []string{mode}
		for _, n := range p.replicas {
			row = append(row, report.Decimal(report.Mean(replicaTimes(samples, mode, n))))
		}
		mean.Rows = append(mean.Rows, row)
		row = []string{mode}
		for _, s := range samples {
			if s.Mode == mode && s.Replicas == 0 {
				cell := report.Decimal(s.Seconds)
				if s.Aborted != "" {
					cell = "broke off"
				}
				row = append(row, cell)
			}
		}
		each.Rows = append(each.Rows, row)
	}
	return []report.Table{mean, each}
}

func alternatingReport(p plan, modes []AlternatingMode) *report.Report {
	return &report.Report{
		Name: alternatingName, Title: "Alternating load, autoscaled", Raw: modes,
		How: howAll + fmt.Sprintf(`The load is ab with a connection per request: %d requests at %d connections, then %d at
			one connection, %d times. (The experiment that this one repeats made 500,000 and then 100,000 requests, ten
			times.) The load server waits before each answer, as one does that asks a database; otherwise one client on the
			same machine would use nearly as much processor time as a hundred. It exits at once at SIGTERM. An autoscaler of
			the experiment scales all modes by the same rule (internal/scale: replicas = ceil(current × value / target), 1 to
			3) from the same data, the processor time that the kernel counts for the pods' cgroups. It sets the number
			through the scale subresource of the Deployment and of the WangellService. Under heavy load the number rises to
			3; under light load it falls to 1, and pods end while ab runs. ab runs without -r: it breaks off at the first
			connection that is cut.`, p.heavy, concurrency, p.heavy/lightShare, p.pairs),
		Summary: alternatingSummary(modes), Tables: []report.Table{alternatingTable(modes)},
		Figure: alternatingFigure(modes),
	}
}

// alternatingSummary counts losses under alternating load.
func alternatingSummary(modes []AlternatingMode) (s report.Summary) {
	for _, m := range modes {
		lost := 0
		for _, r := range m.Runs {
			lost += r.Lost()
		}
		s = append(s, report.Value{Key: "flap_failed_requests_" + m.Mode, Value: float64(lost),
			Meaning: "alternating load, " + m.Mode + ": failed requests"})
	}
	for _, m := range modes {
		s = append(s, report.Value{Key: "flap_aborted_runs_" + m.Mode, Value: float64(m.aborted()),
			Meaning: "alternating load, " + m.Mode + ": runs of ab that broke off"})
	}
	return s
}

func alternatingTable(modes []AlternatingMode) report.Table {
	t := report.Table{Title: "Runs of ab", Header: []string{"mode", "runs", "broke off", "failed requests",
		"falls from 3 pods to 1", "rises from 1 pod to 3", "requests answered"}}
	for _, m := range modes {
		failed, answered := 0, 0
		for _, r := range m.Runs {
			failed += r.Lost()
			answered += r.Requests
		}
		falls, rises := m.swings()
		row := []string{m.Mode}
		for _, n := range []int{len(m.Runs), m.aborted(), failed, falls, rises, answered} {
			row = append(row, strconv.Itoa(n))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func flapReport(p plan, samples []FlapSample) *report.Report {
	return &report.Report{
		Name: flapName, Title: "Requests lost while pods come and go", Raw: samples,
		How: howAll + `The load server is the hello image. Pods are scaled between 1 and 3, restarted by a rollout, or
			deleted, at a fixed interval, under ab -r with a connection per request or under wrk with persistent connections.
			A load server that refuses stops listening at once at SIGTERM, answers what is open, and closes persistent
			connections after their next answer.`,
		Summary: flapSummary(p, samples), Tables: []report.Table{flapTable(samples)}, Figure: flapFigure(p, samples),
	}
}

// flapSummary counts losses in all cases of PartFlap.
func flapSummary(p plan, samples []FlapSample) (s report.Summary) {
	if len(samples) == 0 {
		return nil
	}
	for _, c := range p.cases {
		for _, f := range samples {
			if f.FlapCase == c {
				s = append(s, report.Value{Key: "disturbed_" + c.Key + "_failed_requests_" + f.Mode,
					Value: float64(f.Failed), Meaning: c.String() + ", " + f.Mode + ": failed requests"})
			}
		}
	}
	for _, mode := range p.modes {
		failed := 0
		for _, f := range samples {
			if f.Mode == mode {
				failed += f.Failed
			}
		}
		s = append(s, report.Value{Key: "disturbed_failed_requests_" + mode, Value: float64(failed),
			Meaning: "all of these, " + mode + ": failed requests"})
	}
	return s
}

func flapTable(samples []FlapSample) report.Table {
	t := report.Table{Title: "By disturbance",
		Header: []string{"case", "mode", "disturbed", "answered", "failed", "generator broke off"}}
	for _, s := range samples {
		t.Rows = append(t.Rows, []string{s.FlapCase.String(), s.Mode, strconv.Itoa(s.Disturbed),
			strconv.Itoa(s.Requests), strconv.Itoa(s.Failed), strconv.Itoa(len(s.Aborts))})
	}
	return t
}
