// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/stat"
)

// Median returns the middle of samples: of an even number the mean of the middle two. NaN if there are none.
func Median(samples []float64) float64 { return Percentile(samples, 50) }

// Mean returns the arithmetic mean. NaN if there are no samples.
func Mean(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	return stat.Mean(samples, nil)
}

// StdDev returns the sample standard deviation (divided by n-1). NaN if there are fewer than two samples.
func StdDev(samples []float64) float64 {
	if len(samples) < 2 {
		return math.NaN()
	}
	return stat.StdDev(samples, nil)
}

// Percentile returns the value below which p percent (0-100) of samples are, linear between the two nearest ones
// (method 7 of Hyndman and Fan, 1996, that of NumPy and R). With n samples nothing beyond the percentile 100·(n-1)/n
// is really known: it tends to the greatest one. NaN if there are no samples.
func Percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 || math.IsNaN(p) {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := min(max(p, 0), 100) / 100 * float64(len(sorted)-1)
	below := int(math.Floor(at))
	if below == len(sorted)-1 {
		return sorted[below]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}

// resamples is how many times a bootstrap draws.
const resamples = 5000

// MedianInterval returns the interval that holds the true median with the given confidence (such as 0.95), by the
// percentile bootstrap (Efron, 1979). The same samples give the same interval. NaN if there are none.
func MedianInterval(samples []float64, confidence float64) (low, high float64) {
	return bootstrap(confidence, func(r *rand.Rand) float64 { return Median(resample(r, samples)) })
}

// MedianDifferenceInterval is MedianInterval for median of a minus median of b, which were sampled independently.
func MedianDifferenceInterval(a, b []float64, confidence float64) (low, high float64) {
	return bootstrap(confidence, func(r *rand.Rand) float64 { return Median(resample(r, a)) - Median(resample(r, b)) })
}

func bootstrap(confidence float64, statistic func(*rand.Rand) float64) (low, high float64) {
	r := rand.New(rand.NewPCG(46, 100)) // fixed, so that a report can be made again from its samples
	values := make([]float64, resamples)
	for i := range values {
		values[i] = statistic(r)
	}
	tail := 100 * (1 - confidence) / 2
	return Percentile(values, tail), Percentile(values, 100-tail)
}

// resample picks as many samples as there are, each any number of times.
func resample(r *rand.Rand, samples []float64) []float64 {
	drawn := make([]float64, len(samples))
	for i := range drawn {
		drawn[i] = samples[r.IntN(len(samples))]
	}
	return drawn
}
