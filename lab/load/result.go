// SPDX-License-Identifier: Apache-2.0

package load

// Result is the outcome of one run of a load generator.
type Result struct {
	// Seconds is how long the run took by the generator's own clock.
	Seconds float64 `json:"seconds"`
	// Requests counts the answered ones; PerSecond is their rate.
	Requests  int     `json:"requests"`
	PerSecond float64 `json:"per_second"`
	// Failed counts requests without a good answer, whatever the reason.
	Failed int `json:"failed"`
	// Aborted is why the generator broke off; empty if it did not.
	Aborted string `json:"aborted,omitempty"`
}

// Lost returns the least number of lost requests: a generator that broke off has lost one that it does not count.
func (r Result) Lost() int {
	if r.Aborted != "" && r.Failed == 0 {
		return 1
	}
	return r.Failed
}

// sum adds up results of generators that ran at the same time.
func sum(results []Result) (all Result) {
	for _, r := range results {
		all.Seconds = max(all.Seconds, r.Seconds)
		all.Requests += r.Requests
		all.PerSecond += r.PerSecond
		all.Failed += r.Failed
		if all.Aborted == "" {
			all.Aborted = r.Aborted
		}
	}
	return all
}

// InSequence adds up results of generators that ran one after the other. The rate is that over the whole time.
func InSequence(results []Result) (all Result) {
	for _, r := range results {
		all.Seconds += r.Seconds
		all.Requests += r.Requests
		all.PerSecond += r.PerSecond * r.Seconds
		all.Failed += r.Failed
		if all.Aborted == "" {
			all.Aborted = r.Aborted
		}
	}
	if all.Seconds > 0 {
		all.PerSecond /= all.Seconds
	}
	return all
}
