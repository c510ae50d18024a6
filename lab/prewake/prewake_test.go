// SPDX-License-Identifier: Apache-2.0

package prewake

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"wangell.loutres.me/lab"
)

var silent = lab.Output{Progress: func(int, int) {}, Log: func(string, ...any) {}}

func TestGeneratedServicesHaveThePublishedStatistics(t *testing.T) {
	const n, days = 600, 14
	var hour, minute, same, wild, told float64
	for i := range uint64(n) {
		uses, _ := service(rand.New(rand.NewPCG(7, i)), days*24*time.Hour)
		hour += is(len(uses) <= days*24)
		minute += is(len(uses) <= days*24*60)
		if v := variation(uses); v >= 0 {
			told++
			same += is(v < 0.001)
			wild += is(v > 1)
		}
	}
	for name, c := range map[string]struct{ got, want float64 }{
		"used at most once an hour": {hour / n, hourly}, "used at most once a minute": {minute / n, minutely},
		"used at regular times": {same / told, punctual}, "used in bursts": {wild / told, bursty},
	} {
		if math.Abs(c.got-c.want) > 0.08 {
			t.Errorf("%s: %.2f of the services, want %.2f", name, c.got, c.want)
		}
	}
}

func TestAForecastAvoidsColdWakesForLessMemory(t *testing.T) {
	p := Params{Services: 120, Days: 5}
	s, err := measure(t.Context(), p.withDefaults(), silent)
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]outcome{}
	for _, o := range outcomes(s) {
		by[o.name] = o
	}
	predict, fixed := by["predict, else 10 min"], by["fixed 60 min"]
	if predict.cold >= by["fixed 10 min"].cold/2 {
		t.Errorf("predict: %d cold wakes, fixed 10 min: %d", predict.cold, by["fixed 10 min"].cold)
	}
	if predict.quartile >= fixed.quartile || predict.memory >= fixed.memory {
		t.Errorf("predict %.1f %% cold and %.1f %% memory, fixed 60 min %.1f and %.1f", predict.quartile, predict.memory,
			fixed.quartile, fixed.memory)
	}
	again, err := measure(t.Context(), p.withDefaults(), silent)
	if err != nil || !reflect.DeepEqual(s, again) {
		t.Errorf("another run has another outcome: %v", err)
	}
}

func TestAServiceUsedEveryHourIsColdOnlyWhileItIsLearnt(t *testing.T) {
	var uses []time.Duration
	const span = 7 * 24 * time.Hour
	for at := time.Duration(0); at < span; at += time.Hour {
		uses = append(uses, at)
	}
	p := Policy{Predict: true, Minutes: 10, Bases: map[string]int{}}
	cold, idle := replay(uses, span, &p)
	if cold != 5 || idle > span/5 {
		t.Errorf("%d cold wakes, %v of memory", cold, idle)
	}
	if cold, _ := replay(uses, span, &Policy{Minutes: 10}); cold != len(uses) {
		t.Errorf("without a forecast %d of %d uses were cold", cold, len(uses))
	}
}
