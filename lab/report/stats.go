// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Milliseconds converts a duration to milliseconds, with a resolution of 1 µs.
func Milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// round keeps three decimals: microseconds of a time in milliseconds.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// Median returns the middle sample, or the mean of the middle two. It is NaN if there are no samples.
func Median(samples []float64) float64 { return Percentile(samples, 50) }

// Mean returns the arithmetic mean. It is NaN if there are no samples.
func Mean(samples []float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	return stat.Mean(samples, nil)
}

// StdDev returns the sample standard deviation (divisor n-1). It is NaN if there are fewer than two samples.
func StdDev(samples []float64) float64 {
	if len(samples) < 2 {
		return math.NaN()
	}
	return stat.StdDev(samples, nil)
}

// Percentile returns the p-th percentile (0 to 100) by linear interpolation between the two closest samples: method 7
// of Hyndman and Fan (1996), the default of NumPy and R. With n samples, percentiles beyond 100·(n-1)/n carry no more
// information than the largest sample. It is NaN if there are no samples.
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

// resamples is the number of bootstrap resamples.
const resamples = 5000

// MedianInterval returns the confidence interval of the median by the percentile bootstrap (Efron, 1979); confidence is
// a fraction such as 0.95. The same samples always give the same interval. The bounds are NaN if there are no samples.
func MedianInterval(samples []float64, confidence float64) (low, high float64) {
	return bootstrap(confidence, func(r *rand.Rand) float64 { return Median(resample(r, samples)) })
}

// MedianDifferenceInterval is MedianInterval for the median of a minus the median of b, which were sampled
// independently.
func MedianDifferenceInterval(a, b []float64, confidence float64) (low, high float64) {
	return bootstrap(confidence, func(r *rand.Rand) float64 { return Median(resample(r, a)) - Median(resample(r, b)) })
}

// MeanDifferenceInterval returns the confidence interval of the mean of a minus the mean of b by Welch's t-test (1947),
// for samples that are few and from about normal distributions, such as medians of runs. The bounds are NaN if one has
// fewer than two samples.
func MeanDifferenceInterval(a, b []float64, confidence float64) (low, high float64) {
	if len(a) < 2 || len(b) < 2 {
		return math.NaN(), math.NaN()
	}
	va, vb := stat.Variance(a, nil)/float64(len(a)), stat.Variance(b, nil)/float64(len(b))
	difference := Mean(a) - Mean(b)
	if va+vb == 0 {
		return difference, difference
	}
	freedom := (va + vb) * (va + vb) / (va*va/float64(len(a)-1) + vb*vb/float64(len(b)-1)) // Welch and Satterthwaite
	t := distuv.StudentsT{Sigma: 1, Nu: freedom}.Quantile(1 - (1-confidence)/2)
	half := t * math.Sqrt(va+vb)
	return difference - half, difference + half
}

func bootstrap(confidence float64, statistic func(*rand.Rand) float64) (low, high float64) {
	r := rand.New(rand.NewPCG(46, 100)) // a fixed seed: a report can be made again from its samples
	values := make([]float64, resamples)
	for i := range values {
		values[i] = statistic(r)
	}
	tail := 100 * (1 - confidence) / 2
	return Percentile(values, tail), Percentile(values, 100-tail)
}

// resample draws len(samples) samples with replacement.
func resample(r *rand.Rand, samples []float64) []float64 {
	drawn := make([]float64, len(samples))
	for i := range drawn {
		drawn[i] = samples[r.IntN(len(samples))]
	}
	return drawn
}

// Collect returns f(s) of all samples for which f accepts.
func Collect[S any](samples []S, f func(S) (value float64, accept bool)) (out []float64) {
	for _, s := range samples {
		if v, ok := f(s); ok {
			out = append(out, v)
		}
	}
	return out
}
