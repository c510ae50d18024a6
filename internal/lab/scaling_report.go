// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const scalingHow = "A cluster of several nodes on one machine, each in namespaces of its own, with a real kubelet, containerd and kube-proxy. The load server is the hello " +
	"image, in pods of a Deployment behind a Service of type LoadBalancer (kube-proxy) and in pods of a WangellService, with the same pod template. kube-proxy is restarted in the other mode " +
	"between measurements, and the old mode's rules are flushed; while Wangell is measured kube-proxy runs in either mode, with no part in the way. " +
	"IPVS mode and userspace mode are not measured: kube-proxy's userspace mode was removed in Kubernetes 1.26, and IPVS mode, deprecated since 1.35, needs kernel modules that are not there. " +
	"Clients are in the network namespaces of pods of the first node and use the ClusterIP of kube-proxy's Service, which leaves their addresses as they are, or the " +
	"service address of Wangell's; clients on the LAN are a host outside of the cluster, and use a load balancer's address, routed to the first node, for which kube-proxy masquerades, or Wangell's service address. " +
	"Modes are measured in turn, forth and back. Load generators, nodes and pods share the machine's cores: the numbers compare modes, and are not what a mode can do on a machine of its own. "

// scalingReports makes the reports; the caller adds parameters and versions.
func scalingReports(cfg ScalingConfig, raw ScalingRaw) []*Report {
	now := time.Now()
	main := &Report{Name: "scaling", Title: "Balancing and scaling: kube-proxy and Wangell side by side", Time: now, Summary: scalingSummary(cfg, raw), Raw: raw,
		How: scalingHow + fmt.Sprintf("Fixed load: ab, %d requests with a connection each, %d connections at a time, against %d pods. The other parts have reports of their own.",
			cfg.Requests, scalingConcurrency, scalingReplicas),
		Figure: fixedFigure(cfg, raw.Fixed)}
	if len(raw.Fixed) > 0 {
		main.Tables = append(main.Tables, fixedTable(cfg, raw.Fixed))
	}
	reports := []*Report{main}
	if len(raw.Rates) > 0 {
		reports = append(reports, &Report{Name: "scaling-rates", Title: "Short connections, and requests on kept ones, in a second", Time: now, Raw: raw.Rates, Tables: []Table{ratesTable(cfg, raw.Rates)},
			How: scalingHow + fmt.Sprintf("%d clients with different addresses at once, %d connections at a time in all, against %d pods: ab with a connection for each request, and wrk with "+
				"kept connections. The limit, direct, is without any Service, each client asking another pod. "+
				"The machine's own speed changes by more than the modes differ, within seconds: so a mode of kube-proxy, Wangell and direct take turns every few seconds, and a repetition "+
				"is what each came to in all of its turns. "+
				"For clients on the LAN kube-proxy masquerades, so that all connections to a pod come from one address: ports are used again within a minute, and the pod's kernel drops SYNs "+
				"whose time stamp is older than that of the last connection from there (PAWS), which clients see as a second or more of waiting; the longer a run, the more.", rateHosts, scalingConcurrency, scalingReplicas),
			Figure: ratesFigure(cfg, raw.Rates), Summary: rateSummary(cfg, raw.Rates)})
	}
	if len(raw.Replicas) > 0 {
		reports = append(reports, &Report{Name: "scaling-replicas", Title: "Time of a fixed load by the number of pods", Time: now, Raw: raw.Replicas, Tables: replicaTables(cfg, raw.Replicas),
			How:    scalingHow + "The last setting is autoscaled, 1 to 3 pods, by the experiment's own autoscaler (see the report on alternating load), starting from one pod.",
			Figure: replicasFigure(cfg, raw.Replicas), Summary: replicaSummary(cfg, raw.Replicas)})
	}
	if len(raw.Alternating) > 0 {
		reports = append(reports, &Report{Name: "scaling-alternating", Title: "Alternating load, autoscaled", Time: now, Raw: raw.Alternating, Tables: []Table{alternatingTable(raw.Alternating)},
			How: scalingHow + "An autoscaler of the experiment's own scales all modes by the same rule (internal/scale, replicas = ceil(current × value / target)) from the same data: the processor time that the kernel counts for the " +
				"pods' cgroups. It sets the number through the scale subresource, of the Deployment and of the WangellService. ab runs without -r: it breaks off at the first request that is cut off. " +
				"The load server ends at once when it is asked to (SIGTERM).",
			Figure: alternatingFigure(raw.Alternating), Summary: flapSummary(raw)})
	}
	if len(raw.Flap) > 0 {
		reports = append(reports, &Report{Name: "scaling-flap", Title: "Requests lost while pods come and go", Time: now, Raw: raw.Flap, Tables: []Table{flapTable(raw.Flap)},
			How: scalingHow + "Pods are scaled between 1 and 3, restarted by a rollout, or deleted, at the autoscaler's interval, under ab -r with a connection for each request or under wrk with kept connections. " +
				"A load server that refuses stops listening at once when it is asked to end (SIGTERM), answers what is open, and closes kept connections after their next answer.",
			Figure: flapFigure(cfg, raw.Flap), Summary: disturbSummary(cfg, raw.Flap)})
	}
	return reports
}

// collect returns what f makes of the samples that it takes.
func collect[S any](samples []S, f func(S) (float64, bool)) (out []float64) {
	for _, s := range samples {
		if v, ok := f(s); ok {
			out = append(out, v)
		}
	}
	return out
}

// fixedTimes are the times of complete runs in a mode.
func fixedTimes(samples []FixedSample, mode string) []float64 {
	return collect(samples, func(s FixedSample) (float64, bool) { return s.Seconds, s.Mode == mode && s.Aborted == "" })
}

func rateValues(samples []RateSample, mode, clients string, keep bool) []float64 {
	return collect(samples, func(s RateSample) (float64, bool) {
		return s.PerSecond, s.Mode == mode && s.Clients == clients && s.KeepAlive == keep
	})
}

// rateModes are the modes of PartRates, the limit last.
func (c ScalingConfig) rateModes() []string { return append(slices.Clone(c.Modes), ModeDirect) }

func scalingSummary(cfg ScalingConfig, raw ScalingRaw) (s Summary) {
	if len(raw.Fixed) > 0 {
		for _, mode := range cfg.Modes {
			s = append(s, Value{"fixed_mean_s_" + mode, Mean(fixedTimes(raw.Fixed, mode)), "fixed load, " + mode + ": mean time of a run (s)"})
		}
		for _, mode := range cfg.Modes {
			s = append(s, Value{"fixed_stddev_s_" + mode, StdDev(fixedTimes(raw.Fixed, mode)), mode + ": standard deviation (s)"})
		}
	}
	s = append(s, flapSummary(raw)...)
	s = append(s, rateSummary(cfg, raw.Rates)...)
	return append(s, disturbSummary(cfg, raw.Flap)...)
}

func rateSummary(cfg ScalingConfig, samples []RateSample) (s Summary) {
	if len(samples) == 0 {
		return nil
	}
	for _, v := range []struct {
		key, clients, what string
		keep               bool
	}{
		{"short_conn_per_s_", VantagePods, "short connections in a second", false},
		{"keepalive_req_per_s_", VantagePods, "requests on kept connections in a second", true},
		{"lan_short_conn_per_s_", VantageLAN, "short connections in a second, clients on the LAN", false},
		{"lan_keepalive_req_per_s_", VantageLAN, "requests on kept connections in a second, clients on the LAN", true},
	} {
		for _, mode := range cfg.rateModes() {
			s = append(s, Value{v.key + mode, Median(rateValues(samples, mode, v.clients, v.keep)), v.what + ", " + mode + ": median"})
		}
	}
	return s
}

// flapSummary counts what was lost under alternating load.
func flapSummary(raw ScalingRaw) (s Summary) {
	if len(raw.Alternating) == 0 {
		return nil
	}
	for _, kind := range []struct{ key, what string }{{"flap_failed_requests_", "failed requests"}, {"flap_aborted_runs_", "runs of ab that broke off"}} {
		for _, m := range raw.Alternating {
			n := 0
			for _, r := range m.Runs {
				if kind.key == "flap_failed_requests_" {
					n += r.lost()
				} else if r.Aborted != "" {
					n++
				}
			}
			s = append(s, Value{kind.key + m.Mode, float64(n), "alternating load, " + m.Mode + ": " + kind.what})
		}
	}
	return s
}

// disturbSummary counts what was lost in all cases of PartFlap.
func disturbSummary(cfg ScalingConfig, samples []FlapSample) (s Summary) {
	if len(samples) == 0 {
		return nil
	}
	for _, c := range cfg.flapCases() {
		for _, f := range samples {
			if f.FlapCase == c {
				s = append(s, Value{"disturbed_" + c.Key + "_failed_requests_" + f.Mode, float64(f.Failed), c.String() + ", " + f.Mode + ": failed requests"})
			}
		}
	}
	for _, mode := range cfg.Modes {
		failed := collect(samples, func(s FlapSample) (float64, bool) { return float64(s.Failed), s.Mode == mode })
		s = append(s, Value{"disturbed_failed_requests_" + mode, Mean(failed) * float64(len(failed)), "all of these, " + mode + ": failed requests"})
	}
	return s
}

func replicaSummary(cfg ScalingConfig, samples []ReplicaSample) (s Summary) {
	for _, n := range cfg.replicaSettings() {
		for _, mode := range cfg.Modes {
			key := "replicas_" + strings.ReplaceAll(setting(n), "-", "_to_") + "_mean_s_" + mode
			s = append(s, Value{key, Mean(replicaTimes(samples, mode, n)), setting(n) + " pods, " + mode + ": mean time of a run (s)"})
		}
	}
	return s
}

func replicaTimes(samples []ReplicaSample, mode string, replicas int) []float64 {
	return collect(samples, func(s ReplicaSample) (float64, bool) {
		return s.Seconds, s.Mode == mode && s.Replicas == replicas && s.Aborted == ""
	})
}

func decimal(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }
func whole(v float64) string   { return strconv.FormatFloat(v, 'f', 0, 64) }

func fixedTable(cfg ScalingConfig, samples []FixedSample) Table {
	t := Table{Title: fmt.Sprintf("Fixed load: %d requests, %d pods", cfg.Requests, scalingReplicas), Header: []string{"mode", "runs", "mean (s)", "standard deviation (s)", "median (s)", "failed requests", "aborted runs"}}
	for _, mode := range cfg.Modes {
		times, failed, aborted := fixedTimes(samples, mode), 0, 0
		for _, s := range samples {
			if s.Mode == mode {
				failed += s.lost()
				if s.Aborted != "" {
					aborted++
				}
			}
		}
		t.Rows = append(t.Rows, []string{mode, strconv.Itoa(len(times)), decimal(Mean(times)), decimal(StdDev(times)), decimal(Median(times)), strconv.Itoa(failed), strconv.Itoa(aborted)})
	}
	return t
}

func ratesTable(cfg ScalingConfig, samples []RateSample) Table {
	t := Table{Title: "Rates (medians of repetitions, per second)", Header: []string{"mode", "clients", "short connections", "failed", "requests on kept connections", "failed"}}
	for _, clients := range rateClients {
		for _, mode := range cfg.rateModes() {
			failed := [2]int{}
			for _, s := range samples {
				if s.Mode == mode && s.Clients == clients && s.KeepAlive {
					failed[1] += s.lost()
				} else if s.Mode == mode && s.Clients == clients {
					failed[0] += s.lost()
				}
			}
			t.Rows = append(t.Rows, []string{mode, clients, whole(Median(rateValues(samples, mode, clients, false))), strconv.Itoa(failed[0]),
				whole(Median(rateValues(samples, mode, clients, true))), strconv.Itoa(failed[1])})
		}
	}
	return t
}

func replicaTables(cfg ScalingConfig, samples []ReplicaSample) []Table {
	mean := Table{Title: "Mean time of a run (s), by pods", Header: append([]string{"mode"}, settings(cfg)...)}
	each := Table{Title: "Time of each repetition, autoscaled (s)", Header: []string{"mode"}}
	for i := range cfg.Repetitions {
		each.Header = append(each.Header, strconv.Itoa(i+1))
	}
	for _, mode := range cfg.Modes {
		row := []string{mode}
		for _, n := range cfg.replicaSettings() {
			row = append(row, decimal(Mean(replicaTimes(samples, mode, n))))
		}
		mean.Rows = append(mean.Rows, row)
		row = []string{mode}
		for _, s := range samples {
			if s.Mode == mode && s.Replicas == 0 {
				cell := decimal(s.Seconds)
				if s.Aborted != "" {
					cell = "broke off"
				}
				row = append(row, cell)
			}
		}
		each.Rows = append(each.Rows, row)
	}
	return []Table{mean, each}
}

func settings(cfg ScalingConfig) (names []string) {
	for _, n := range cfg.replicaSettings() {
		names = append(names, setting(n))
	}
	return names
}

func alternatingTable(modes []AlternatingMode) Table {
	t := Table{Title: "Runs of ab", Header: []string{"mode", "runs", "aborted", "failed requests", "changes of the number of pods", "requests answered"}}
	for _, m := range modes {
		aborted, failed, answered, changes := 0, 0, 0, 0
		for _, r := range m.Runs {
			failed += r.lost()
			answered += r.Requests
			if r.Aborted != "" {
				aborted++
			}
		}
		for i := 1; i < len(m.Steps); i++ {
			if m.Steps[i].Wanted != m.Steps[i-1].Wanted {
				changes++
			}
		}
		t.Rows = append(t.Rows, []string{m.Mode, strconv.Itoa(len(m.Runs)), strconv.Itoa(aborted), strconv.Itoa(failed), strconv.Itoa(changes), strconv.Itoa(answered)})
	}
	return t
}

func flapTable(samples []FlapSample) Table {
	t := Table{Title: "By disturbance", Header: []string{"case", "mode", "disturbed", "answered", "failed", "generator broke off"}}
	for _, s := range samples {
		t.Rows = append(t.Rows, []string{s.FlapCase.String(), s.Mode, strconv.Itoa(s.Disturbed), strconv.Itoa(s.Requests), strconv.Itoa(s.Failed), strconv.Itoa(len(s.Aborts))})
	}
	return t
}
