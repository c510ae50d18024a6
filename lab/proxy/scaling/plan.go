// SPDX-License-Identifier: Apache-2.0

package scaling

import "slices"

// plan is what samples are about. It is derived from them, so that a report can be made again from its JSON alone.
type plan struct {
	modes    []string
	requests int // of a run of ab
	// repetitions and replicas belong to PartReplicas.
	repetitions int
	replicas    []int
	cases       []FlapCase
	// heavy is the number of requests of a heavy run of PartAlternating, pairs the number of heavy and light runs.
	heavy, pairs int
}

// planOf derives the plan from samples and the number of requests of a run of ab.
func planOf(s Samples, requests int) plan {
	p := plan{requests: requests}
	measured := map[string]bool{}
	for _, f := range s.Fixed {
		measured[f.Mode] = true
	}
	for _, r := range s.Rates {
		measured[r.Mode] = true
	}
	for _, r := range s.Replicas {
		measured[r.Mode] = true
		p.repetitions = max(p.repetitions, r.Repetition+1)
		if !slices.Contains(p.replicas, r.Replicas) {
			p.replicas = append(p.replicas, r.Replicas)
		}
	}
	for _, a := range s.Alternating {
		measured[a.Mode] = true
		p.pairs = max(p.pairs, len(a.Runs)/2)
		for _, r := range a.Runs {
			if r.Concurrency > 1 {
				p.heavy = max(p.heavy, r.Requests)
			}
		}
	}
	for _, f := range s.Flap {
		measured[f.Mode] = true
		if !slices.Contains(p.cases, f.FlapCase) {
			p.cases = append(p.cases, f.FlapCase)
		}
	}
	for _, mode := range AllModes {
		if measured[mode] {
			p.modes = append(p.modes, mode)
		}
	}
	return p
}
