// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"fmt"
	"strconv"

	"wangell.loutres.me/lab/report"
)

func alternatingReport(p plan, modes []AlternatingMode) *report.Report {
	return &report.Report{
		Name: alternatingName, Title: "Alternating load, autoscaled", Raw: modes,
		How: howAll + fmt.Sprintf(`The load is ab with a connection per request: %d requests at %d connections, then %d at
			one connection, %d times. (--requests 500000 --repetitions 10 gives the full
			size.) The load server waits before each answer, like one that queries a database; otherwise one client on the
			same machine would use nearly as much processor time as a hundred. It exits at once at SIGTERM. An autoscaler of
			the experiment scales all modes by the same rule (internal/decide/scale: replicas = ceil(current × value / target), 1
			to 3) from the same data, the processor time that the kernel counts for the pods' cgroups. It sets the number
			through the scale subresource of the Deployment and of the WangellService. Under heavy load the number rises to
			3; under light load it falls to 1, and pods end while ab runs. ab runs without -r: it breaks off at the first
			connection that is cut, and the next run begins two intervals of the autoscaler later.`,
			p.heavy, concurrency, p.heavy/lightShare, p.pairs),
		Answer:  alternatingAnswer,
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
		Answer:  flapAnswer,
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

// alternatingAnswer is what the report on alternating load says first.
var alternatingAnswer = report.Answer{
	Sentences: []string{
		"Under a load that alternates, {flap_aborted_runs_wangell} runs of ab break off with Wangell, " +
			"{flap_aborted_runs_iptables} with kube-proxy's iptables and {flap_aborted_runs_nftables} with its " +
			"nftables.",
		"The runs lose {flap_failed_requests_wangell}, {flap_failed_requests_iptables} and " +
			"{flap_failed_requests_nftables} requests.",
	},
	Quoted: []string{
		"flap_failed_requests_iptables", "flap_failed_requests_nftables", "flap_failed_requests_wangell",
		"flap_aborted_runs_iptables", "flap_aborted_runs_nftables", "flap_aborted_runs_wangell",
	},
}

// flapAnswer is what the report on pods that come and go says first.
var flapAnswer = report.Answer{
	Sentences: []string{
		"While pods are scaled, replaced and deleted, {disturbed_failed_requests_wangell} requests fail with " +
			"Wangell, {disturbed_failed_requests_iptables} with kube-proxy's iptables and " +
			"{disturbed_failed_requests_nftables} with its nftables.",
		"A server that refuses connections at SIGTERM while pods are scaled accounts for " +
			"{disturbed_scale_refuse_ab_failed_requests_wangell}, " +
			"{disturbed_scale_refuse_ab_failed_requests_iptables} and " +
			"{disturbed_scale_refuse_ab_failed_requests_nftables} of them.",
	},
	Quoted: []string{
		"disturbed_failed_requests_iptables", "disturbed_failed_requests_nftables",
		"disturbed_failed_requests_wangell", "disturbed_scale_refuse_ab_failed_requests_iptables",
		"disturbed_scale_refuse_ab_failed_requests_nftables", "disturbed_scale_refuse_ab_failed_requests_wangell",
		"disturbed_rollout_ab_failed_requests_iptables", "disturbed_rollout_ab_failed_requests_nftables",
		"disturbed_rollout_ab_failed_requests_wangell",
	},
}
