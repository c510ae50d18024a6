// SPDX-License-Identifier: Apache-2.0

package report

import (
	"math"
	"math/rand/v2"
	"testing"
)

func near(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) < 1e-9
}

func TestStatisticsOfKnownSamples(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name                      string
		samples                   []float64
		median, mean, stddev, p99 float64
	}{
		{"none", nil, nan, nan, nan, nan},
		{"one", []float64{3}, 3, 3, nan, 3},
		{"two", []float64{4, 2}, 3, 3, math.Sqrt2, 3.98},
		{"odd, not in order", []float64{9, 1, 5}, 5, 5, 4, 8.92},
		{"even", []float64{1, 2, 3, 10}, 2.5, 4, math.Sqrt(50.0 / 3), 9.79},
		{"all the same", []float64{7, 7, 7, 7}, 7, 7, 0, 7},
	} {
		t.Run(test.name, func(t *testing.T) {
			given := append([]float64(nil), test.samples...)
			if got := Median(given); !near(got, test.median) {
				t.Errorf("median %v, want %v", got, test.median)
			}
			if got := Mean(given); !near(got, test.mean) {
				t.Errorf("mean %v, want %v", got, test.mean)
			}
			if got := StdDev(given); !near(got, test.stddev) {
				t.Errorf("standard deviation %v, want %v", got, test.stddev)
			}
			if got := Percentile(given, 99); !near(got, test.p99) {
				t.Errorf("99th percentile %v, want %v", got, test.p99)
			}
			for i := range given {
				if given[i] != test.samples[i] {
					t.Fatal("the samples were reordered")
				}
			}
		})
	}
	for _, test := range []struct{ p, want float64 }{
		{-1, 1}, {0, 1}, {25, 2}, {50, 3}, {90, 4.6}, {100, 5}, {200, 5}, {nan, nan},
	} {
		if got := Percentile([]float64{5, 4, 3, 2, 1}, test.p); !near(got, test.want) {
			t.Errorf("percentile %v: %v, want %v", test.p, got, test.want)
		}
	}
}

func TestMedianIntervalHoldsTheTrueMedian(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const trials = 100
	hits, differenceHits := 0, 0
	for range trials {
		a, b := make([]float64, 30), make([]float64, 30)
		for i := range a {
			a[i], b[i] = 100+10*r.NormFloat64(), 60+10*r.NormFloat64()
		}
		if low, high := MedianInterval(a, 0.95); low <= 100 && 100 <= high {
			hits++
		}
		if low, high := MedianDifferenceInterval(a, b, 0.95); low <= 40 && 40 <= high {
			differenceHits++
		}
	}
	// 95 of 100 are expected. The seed is fixed, so the outcome does not vary.
	if hits < 90 || differenceHits < 90 {
		t.Errorf("the interval held the true median in %d and the true difference in %d of %d trials",
			hits, differenceHits, trials)
	}
	if low, high := MedianInterval([]float64{5, 5, 5}, 0.95); low != 5 || high != 5 {
		t.Errorf("interval of equal samples: %v to %v", low, high)
	}
	low, high := MedianInterval([]float64{1, 2, 3, 4}, 0.95)
	if again, _ := MedianInterval([]float64{1, 2, 3, 4}, 0.95); again != low || low >= high {
		t.Errorf("interval %v to %v, again from %v", low, high, again)
	}
	if low, high := MedianInterval(nil, 0.95); !math.IsNaN(low) || !math.IsNaN(high) {
		t.Errorf("interval of nothing: %v to %v", low, high)
	}
}

func TestMeanDifferenceIntervalIsWelchs(t *testing.T) {
	// Means 2 and 7, variances 1 and 4, 3 samples each: s² = 5/3, ν = 2.9412, t = 3.2204 for 97.5 %.
	low, high := MeanDifferenceInterval([]float64{1, 2, 3}, []float64{5, 7, 9}, 0.95)
	if math.Abs(low-(-9.157)) > 0.01 || math.Abs(high-(-0.843)) > 0.01 {
		t.Errorf("interval %v to %v", low, high)
	}
	if low, high := MeanDifferenceInterval([]float64{5, 5}, []float64{3, 3}, 0.95); low != 2 || high != 2 {
		t.Errorf("interval without variance: %v to %v", low, high)
	}
	if low, _ := MeanDifferenceInterval([]float64{5}, []float64{3, 4}, 0.95); !math.IsNaN(low) {
		t.Errorf("interval of one sample: %v", low)
	}
}
