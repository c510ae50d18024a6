// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"slices"
	"strconv"
	"time"

	"wangell.loutres.me/lab/proxy"
	"wangell.loutres.me/lab/report"
)

// replicas is the number of pods.
const replicas = 5

// AllModes are the compared modes.
var AllModes = []string{proxy.ModeNftables, proxy.ModeWangell, proxy.ModeRequest, proxy.ModeKnative}

// machineModes are those without Kubernetes.
var machineModes = []string{proxy.ModeWangell, proxy.ModeRequest}

// requestModes are those in which an Envoy chooses a pod for each request.
var requestModes = []string{proxy.ModeRequest, proxy.ModeKnative}

// workModes are those that are also compared with a server that works for each answer, and workPatterns how.
var (
	workModes    = []string{proxy.ModeWangell, proxy.ModeRequest, proxy.ModeKnative}
	workPatterns = []string{"one_connection", "five_connections", "pool_20"}
)

// work is the processor time of an answer of that server.
const work = 2 * time.Millisecond

// Pattern is a way in which clients use connections.
type Pattern struct {
	// Key is the name in summaries, Name the one for people.
	Key  string `json:"key"`
	Name string `json:"name"`
	// Clients share nothing. Each has a number of Threads, which make one request after the other.
	Clients int `json:"clients"`
	Threads int `json:"threads"`
	// OwnConnection: each thread keeps a connection of its own. NewConnection: each request makes one. With neither, each
	// request borrows a connection from its client's pool.
	OwnConnection bool `json:"own_connection,omitempty"`
	NewConnection bool `json:"new_connection,omitempty"`
}

// Patterns are the measured patterns.
var Patterns = []Pattern{
	{Key: "one_connection", Name: "one connection, reused", Clients: 1, Threads: 1, OwnConnection: true},
	{Key: "five_connections", Name: "5 threads, a connection each", Clients: 1, Threads: 5, OwnConnection: true},
	{Key: "new_connection", Name: "a new connection for each request", Clients: 1, Threads: 1, NewConnection: true},
	{Key: "pool_5", Name: "a pool shared by 5 threads", Clients: 1, Threads: 5},
	{Key: "pool_20", Name: "a pool shared by 20 threads", Clients: 1, Threads: 20},
	{Key: "seven_clients", Name: "7 clients of 3 threads", Clients: 7, Threads: 3},
}

// Sample is the outcome of a pattern in a mode.
type Sample struct {
	Mode    string  `json:"mode"`
	Pattern string  `json:"pattern"`
	Seconds float64 `json:"seconds"`
	// Requests and Connections are by pod. A pod without any has a zero.
	Requests    map[string]int `json:"requests"`
	Connections map[string]int `json:"connections"`
	Failed      int            `json:"failed"`
	Errors      []string       `json:"errors,omitempty"` // the first few
	// Work is the processor time that an answer costs the server, in milliseconds.
	Work float64 `json:"work_ms,omitempty"`
	// P50 and P99 are percentiles of the time of a request in milliseconds, 0 if none was answered.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	// Envoy is what the Envoys of the mode used; nil in modes without one.
	Envoy *EnvoyUse `json:"envoy,omitempty"`
}

// EnvoyUse is what the Envoys of all nodes used, or the Envoys of Kourier.
type EnvoyUse struct {
	CPU    float64 `json:"cpu_s"`      // of all, in seconds
	Memory float64 `json:"memory_mib"` // of the largest at the end, without files
}

// together returns the samples with those of the same mode and pattern, of all rounds, as one. The counts of the
// busiest pod of each round are added up, those of the second, and so on, as another pod is the busiest in each round.
// Times are medians.
func together(samples []Sample) (out []Sample) {
	type key struct {
		mode, pattern string
		work          float64
	}
	rounds := map[key][]Sample{}
	var keys []key
	for _, s := range samples {
		k := key{s.Mode, s.Pattern, s.Work}
		if rounds[k] == nil {
			keys = append(keys, k)
		}
		rounds[k] = append(rounds[k], s)
	}
	for _, k := range keys {
		out = append(out, sum(rounds[k]))
	}
	return out
}

// sum returns the samples of all rounds as one.
func sum(rounds []Sample) Sample {
	if len(rounds) == 1 {
		return rounds[0]
	}
	out := Sample{
		Mode: rounds[0].Mode, Pattern: rounds[0].Pattern, Work: rounds[0].Work,
		Requests: map[string]int{}, Connections: map[string]int{},
	}
	var p50, p99 []float64
	for _, s := range rounds {
		out.Seconds += s.Seconds
		out.Failed += s.Failed
		out.Errors = append(out.Errors, s.Errors...)
		for i, n := range descending(s.Requests) {
			out.Requests[strconv.Itoa(i)] += n
		}
		for i, n := range descending(s.Connections) {
			out.Connections[strconv.Itoa(i)] += n
		}
		p50, p99 = append(p50, s.P50), append(p99, s.P99)
		if s.Envoy != nil {
			if out.Envoy == nil {
				out.Envoy = &EnvoyUse{}
			}
			out.Envoy.CPU += s.Envoy.CPU
			out.Envoy.Memory = max(out.Envoy.Memory, s.Envoy.Memory)
		}
	}
	out.P50, out.P99 = report.Median(p50), report.Median(p99)
	return out
}

// answered returns the number of requests that were answered.
func (s Sample) answered() int {
	n := 0
	for _, r := range s.Requests {
		n += r
	}
	return n
}

// perSecond returns the requests per second.
func (s Sample) perSecond() float64 {
	return float64(s.answered()) / s.Seconds
}

// busiest returns the largest count over the mean: 1 if all are equal, also if all are zero.
func busiest(counts map[string]int) float64 {
	sum, most := 0, 0
	for _, n := range counts {
		sum, most = sum+n, max(most, n)
	}
	if sum == 0 {
		return 1
	}
	return float64(most) * float64(len(counts)) / float64(sum)
}

// descending returns the counts in descending order.
func descending(counts map[string]int) []int {
	var out []int
	for _, n := range counts {
		out = append(out, n)
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out
}
