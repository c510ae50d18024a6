// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

func TestThrottlingIsWarnedOfWhileItLasts(t *testing.T) {
	var th throttle
	var used runtime.Usage
	at := monotime.Time(1e9)
	for i, step := range []struct {
		periods, throttled uint64
		changed            bool
		want               string
	}{
		{500, 400, false, ""},             // of the start, before the first look
		{100, 24, false, ""},              // bursts
		{60, 60, false, ""},               // too few to judge
		{40, 5, true, "65 % of the peri"}, // with those before it
		{100, 90, false, "65 % of the peri"},
		{10, 0, false, "65 % of the peri"}, // almost idle
		{90, 2, true, ""},
	} {
		at += monotime.Time(10 * time.Second)
		used.Periods, used.Throttled, used.At = used.Periods+step.periods, used.Throttled+step.throttled, at
		used.ThrottledTime += time.Duration(step.throttled) * 50 * time.Millisecond
		free := runtime.ContainerUsage{Name: "free"}
		if th.note([]runtime.ContainerUsage{free, {Name: "web", Usage: used}}) != step.changed {
			t.Errorf("step %d: changed: %t", i, !step.changed)
		}
		if step.want == "" && th.warning != "" || !strings.Contains(th.warning, step.want) {
			t.Errorf("step %d: %q, want %q", i, th.warning, step.want)
		}
		if len(th.containers) != 1 || th.containers[0].Name != "web" {
			t.Errorf("step %d: %+v", i, th.containers)
		}
	}
	// A container that was started again counts from zero.
	if th.note([]runtime.ContainerUsage{{Name: "web", Usage: runtime.Usage{Periods: 200, Throttled: 200}}}) {
		t.Errorf("after its restart: %q", th.warning)
	}
	if got := throttleWarning("web", 0.5, 1500*time.Millisecond, 10*time.Second); got != "container web had used up its "+
		"CPU limit in 50 % of the periods of the last 10s, in which its tasks waited for 1.5s together: raise "+
		"resources.limits.cpu, or run fewer workers" {
		t.Error(got)
	}
}

func TestOnlyPodsThatRunWithALimitAreWatchedForThrottling(t *testing.T) {
	serviceWith := func(more string) *service {
		s := &v1alpha1.WangellService{}
		if more != "" {
			one := corev1.ResourceList{corev1.ResourceName(more): resource.MustParse("1")}
			s.Spec.Containers = []v1alpha1.Container{{Resources: corev1.ResourceRequirements{Limits: one}}}
		}
		return &service{wanted: &wanted{spec: s}}
	}
	frozen := stillness{report: &wire.Frozen{At: 5}}
	for name, c := range map[string]struct {
		pod       *pod
		throttled bool
	}{
		"no limit":          {&pod{service: serviceWith("")}, false},
		"a limit of memory": {&pod{service: serviceWith("memory")}, false},
		"a limit of CPU":    {&pod{service: serviceWith("cpu")}, true},
		"frozen":            {&pod{service: serviceWith("cpu"), still: frozen}, false},
	} {
		if got := canBeThrottled(c.pod); got != c.throttled {
			t.Errorf("%s: %t", name, got)
		}
	}
	for name, c := range map[string]struct {
		pod     *pod
		written bool
	}{
		"runs":                         {&pod{layer: layer{at: 9}}, true},
		"frozen since the last look":   {&pod{still: frozen, layer: layer{at: 4}}, true},
		"looked at since it is frozen": {&pod{still: frozen, layer: layer{at: 6}}, false},
	} {
		if got := mayHaveWritten(c.pod); got != c.written {
			t.Errorf("%s: %t", name, got)
		}
	}
}
