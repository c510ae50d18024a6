// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"math/rand/v2"
	"testing"
	"time"
)

// monday is a Monday at 00:00 UTC.
var monday = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

// after returns the history of a service that was used after each of the idle times, and n times over.
func after(n int, idle ...time.Duration) *History {
	h, at := &History{}, monday
	h.Used(at)
	for range n {
		for _, d := range idle {
			at = at.Add(d)
			h.Used(at)
		}
	}
	return h
}

func TestForecastFollowsThePastOfAService(t *testing.T) {
	const fixed = 10 * time.Minute
	uniform := make([]time.Duration, bins)
	for i := range uniform {
		uniform[i] = time.Duration(i)*Bin + 30*time.Second + Bin/2
	}
	for name, c := range map[string]struct {
		h    *History
		want Forecast
	}{
		"never used":             {&History{}, Forecast{0, fixed, Unknown}},
		"too few idle times":     {after(3, time.Hour), Forecast{0, fixed, Unknown}},
		"without pauses":         {after(1000, time.Second), Forecast{0, fixed, Unknown}},
		"idle times of any kind": {after(1, uniform...), Forecast{0, fixed, Unknown}},
		"every ten minutes": {after(20, 10*time.Minute),
			Forecast{9 * time.Minute, 11*66*time.Second - 9*time.Minute, Histogram}},
		"every hour": {after(20, time.Hour),
			Forecast{54 * time.Minute, 61*66*time.Second - 54*time.Minute, Histogram}},
		"in bursts of a minute or two": {after(100, 80*time.Second, 150*time.Second),
			Forecast{0, 3 * 66 * time.Second, Histogram}},
		"every day": {after(5, 24*time.Hour),
			Forecast{1224 * time.Minute, 432 * time.Minute, Series}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.h.Next(fixed); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestOneLateUseDoesNotUpsetAForecast(t *testing.T) {
	h := after(200, time.Hour)
	before := h.Next(time.Minute)
	h.Used(h.Last().Add(3 * time.Hour))
	if got := h.Next(time.Minute); got != before {
		t.Errorf("got %v, want %v", got, before)
	}
}

func TestForecastFollowsAServiceThatChangesItsWays(t *testing.T) {
	h := after(1500, 20*time.Minute)
	for range 3000 {
		h.Used(h.Last().Add(90 * time.Minute))
	}
	if f := h.Next(time.Minute); f.Warm(20*time.Minute) || !f.Warm(90*time.Minute) {
		t.Errorf("it used to come every 20 min, and has come every 90 min for long: %v", f)
	}
}

func TestUsesInThePastAreIgnored(t *testing.T) {
	h := after(1, time.Hour)
	before := h.Encode()
	if h.Used(h.Last()) || h.Used(h.Last().Add(-time.Hour)) || h.Encode() != before {
		t.Error("an earlier use changed the history")
	}
}

// Whatever the history, a forecast is sane, its parts agree, and the history survives being written down.
func TestEveryForecastIsSane(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const fixed = 5 * time.Minute
	for range 2000 {
		h := &History{}
		at, scale := monday, time.Duration(1+r.Int64N(int64(3*time.Hour)))
		for range r.IntN(300) {
			at = at.Add(time.Duration(r.ExpFloat64() * float64(scale)))
			h.Used(at)
		}
		f := h.Next(fixed)
		if f.Prewarm < 0 || f.Keep <= 0 || f.Keep > 2*longest || f.Basis == "" {
			t.Fatalf("%v", f)
		}
		if f.Prewarm != 0 && f.Prewarm < Linger+shortestAbsence {
			t.Fatalf("%v ends a pod and starts it again at once", f)
		}
		total := time.Duration(0)
		for idle, step := time.Duration(0), time.Second*37; idle < 5*time.Hour; idle += step {
			if got := f.Spent(idle + step); got < f.Spent(idle) || got > f.Spent(idle)+step {
				t.Fatalf("%v: spent %v after %v, %v after %v", f, f.Spent(idle), idle, got, idle+step)
			}
			wanted, change := f.Wanted(monday, monday.Add(idle))
			if warm := wanted || idle < Linger; warm != f.Warm(idle) {
				t.Fatalf("%v: after %v wanted %v, but warm %v", f, idle, wanted, f.Warm(idle))
			}
			if !change.IsZero() && !change.After(monday.Add(idle)) {
				t.Fatalf("%v: changes at %v, which is not after %v", f, change, idle)
			}
			if f.Warm(idle) {
				total += step
			}
		}
		if got := f.Spent(5 * time.Hour); got < total-3*time.Minute || got > total+3*time.Minute {
			t.Fatalf("%v: spent %v, but was warm for %v", f, got, total)
		}
		text := h.Encode()
		if len(text) > MaxEncoded {
			t.Fatalf("%d bytes", len(text))
		}
		again, err := Decode(text)
		if err != nil || again.Encode() != text || again.Next(fixed) != f {
			t.Fatalf("%q was read as %q: %v", text, again.Encode(), err)
		}
	}
}

// A history with all bins full has the longest text.
func TestTheLargestHistoryFits(t *testing.T) {
	h := &History{}
	at := monday
	h.Used(at)
	for i := range 100 * bins {
		at = at.Add(time.Duration(i%bins)*Bin + Bin)
		h.Used(at)
		if n := len(h.Encode()); n > MaxEncoded {
			t.Fatalf("%d bytes", n)
		}
		if h.Len() >= most {
			t.Fatalf("%d idle times", h.Len())
		}
	}
}

func TestMistakesInAWrittenHistoryAreErrors(t *testing.T) {
	for _, text := range []string{
		"x", "{}", `{"bins":"1:1"}`, `{"last":"2026-11-23T00:00:00Z","bins":"240:1","recent":[60]}`,
		`{"last":"2026-11-23T00:00:00Z","bins":"1:1 1:2","recent":[60]}`,
		`{"last":"2026-11-23T00:00:00Z","bins":"1:70000","recent":[60]}`,
		`{"last":"2026-11-23T00:00:00Z","bins":"1:499 2:499","recent":[60]}`,
		`{"last":"2026-11-23T00:00:00Z","beyond":-1,"recent":[60]}`,
		`{"last":"2026-11-23T00:00:00Z","bins":"1:1"}`,
		`{"last":"2026-11-23T00:00:00Z","bins":"1:1","recent":[-60]}`,
	} {
		if h, err := Decode(text); err == nil {
			t.Errorf("%s was read as %s", text, h.Encode())
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(after(20, time.Hour).Encode())
	f.Add(after(5, 24*time.Hour, time.Minute).Encode())
	f.Fuzz(func(t *testing.T, text string) {
		h, err := Decode(text)
		if err != nil {
			return
		}
		if h.Next(time.Minute).Keep <= 0 || len(h.Encode()) > MaxEncoded {
			t.Errorf("%q: %v, %q", text, h.Next(time.Minute), h.Encode())
		}
	})
}
