// SPDX-License-Identifier: Apache-2.0

package pullstat

import (
	"math"
	"slices"
)

// divide divides a pull of a number of seconds among the phases of its layers. Each moment belongs, in equal parts, to
// the layers for which something is done; it is Resolve before the first of them began and Finish after the last one's
// end; and Other if nothing is done for any layer in between. Overlap is the sum of all work divided by the time in
// which there was any.
func divide(layers []LayerReport, pull float64) (phases map[Phase]float64, overlap float64) {
	phases = map[Phase]float64{}
	first, last := math.Inf(1), 0.0
	edges := []float64{0, pull}
	var work float64
	for _, l := range layers {
		for _, s := range l.Spans {
			last = max(last, s.End)
			edges = append(edges, s.Begin, s.End)
			if s.Phase != Wait {
				work += s.End - s.Begin
				// A snapshot may be prepared before the first download.
				if s.Phase != Prepare {
					first = min(first, s.Begin)
				}
			}
		}
	}
	slices.Sort(edges)
	var busy float64
	for i := 1; i < len(edges); i++ {
		begin, end := edges[i-1], min(edges[i], pull)
		length := end - begin
		if length <= 0 {
			continue
		}
		running := runningAt(layers, (begin+end)/2)
		switch {
		case len(running) > 0:
			busy += length
			for _, p := range running {
				phases[p] += length / float64(len(running))
			}
		case end <= first:
			phases[Resolve] += length
		case begin >= last:
			phases[Finish] += length
		default:
			phases[Other] += length
		}
	}
	if busy > 0 {
		overlap = work / busy
	}
	return phases, overlap
}

// runningAt returns the phases of the layers at one moment, without those that wait.
func runningAt(layers []LayerReport, moment float64) []Phase {
	var running []Phase
	for _, l := range layers {
		for _, s := range l.Spans {
			if s.Phase != Wait && s.Begin <= moment && moment < s.End {
				running = append(running, s.Phase)
			}
		}
	}
	return running
}
