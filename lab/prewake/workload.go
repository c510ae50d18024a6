// SPDX-License-Identifier: Apache-2.0

package prewake

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat/distuv"
)

// Statistics of Azure Functions that Shahrad et al. published ("Serverless in the Wild", USENIX ATC 2020): section 3.2
// and figure 5a for the number of uses, figure 4 for the time of day, section 3.3 and figure 6 for the regularity, and
// section 3.5 and figure 8 for the memory. An application of theirs is a service here. Within the ranges that they
// give, values are spread evenly on a logarithmic scale.
const (
	hourly, minutely = 0.45, 0.81 // services used at most once an hour, and at most once a minute, on average
	punctual         = 0.20       // services whose times between uses are all the same
	nearlyPunctual   = 0.10       // services whose times between uses vary little
	bursty           = 0.40       // services whose times between uses have a coefficient of variation above 1
	quiet            = 0.5        // use in the quietest hour of the day, of that in the busiest one
)

// memory is the fit of the paper to the memory of an application, in MB: a Burr distribution (type XII).
var memory = struct{ c, k, scale float64 }{11.652, 0.221, 107.083}

// rare is the longest mean time between uses, frequent the shortest: uses within a minute of another find a pod ready
// whatever the policy.
const rare, frequent = 7 * 24 * time.Hour, 30 * time.Second

// periods of services that are used at regular times.
var periods = []time.Duration{
	time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
	3 * time.Hour, 4 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour,
}

// service returns the uses of a random service, and the memory of its pod in MB.
func service(r *rand.Rand, span time.Duration) (uses []time.Duration, mb float64) {
	mb = memory.scale * math.Pow(math.Pow(1-r.Float64(), -1/memory.k)-1, 1/memory.c)
	var mean time.Duration
	switch u := r.Float64(); {
	case u < hourly:
		mean = between(r, time.Hour, rare)
	case u < minutely:
		mean = between(r, time.Minute, time.Hour)
	default:
		mean = between(r, frequent, time.Minute)
	}
	regular := r.Float64()
	if regular < punctual {
		mean = slices.MinFunc(periods, func(a, b time.Duration) int {
			return int(1000 * (math.Abs(math.Log(float64(a)/float64(mean))) - math.Abs(math.Log(float64(b)/float64(mean)))))
		})
		for at := time.Duration(r.Int64N(int64(mean))); at < span; at += mean {
			uses = append(uses, at)
		}
		return uses, mb
	}
	variation := 0.3 + 0.6*r.Float64()
	switch {
	case regular < punctual+nearlyPunctual:
		variation = 0.05 + 0.25*r.Float64()
	case regular < punctual+nearlyPunctual+bursty:
		variation = math.Exp(r.Float64() * math.Log(10))
	}
	shape := 1 / (variation * variation)
	gaps := distuv.Gamma{Alpha: shape, Beta: shape / float64(mean), Src: r}
	at := time.Duration(r.Float64() * gaps.Rand())
	for ; at < span; at = later(at, time.Duration(gaps.Rand())) {
		uses = append(uses, at)
	}
	return uses, mb
}

// between returns a random time between two, spread evenly on a logarithmic scale.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return time.Duration(float64(least) * math.Pow(float64(most)/float64(least), r.Float64()))
}

// later returns the time after a gap, which is shorter in the busy hours of the day and longer in the quiet ones.
func later(at, gap time.Duration) time.Duration {
	const day, swing = 24 * float64(time.Hour), (1 - quiet) / (1 + quiet)
	// What has passed of the day, as a service with even use would see it.
	passed := func(t float64) float64 { return t + swing*day/(2*math.Pi)*(1-math.Cos(2*math.Pi*t/day)) }
	goal := passed(float64(at)) + float64(gap)
	low, high := float64(at), float64(at)+float64(gap)/(1-swing)+1
	for high-low > float64(time.Millisecond) {
		if middle := (low + high) / 2; passed(middle) < goal {
			low = middle
		} else {
			high = middle
		}
	}
	return time.Duration(high)
}
