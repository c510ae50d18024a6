// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxSleepTime is the longest time that freezeAfter and stopAfter accept, as idleTimeout does: a year.
const maxSleepTime = 31536000 * time.Second

// StopsUnderPressure reports whether frozen pods are stopped when their node is short of room.
func (s *WangellServiceSpec) StopsUnderPressure() bool {
	return s.Sleep != nil && s.Sleep.OnPressure == PressureStop && s.FreezeAfter() > 0 && s.MinReplicas == 0
}

// FreezeAfter is the time without a packet after which the pods are frozen; 0 if they are not.
func (s *WangellServiceSpec) FreezeAfter() time.Duration {
	if s.Sleep == nil || s.Sleep.FreezeAfter == nil {
		return 0
	}
	return s.Sleep.FreezeAfter.Duration
}

// Reclaims reports whether the memory of frozen pods is to be given back.
func (s *WangellServiceSpec) Reclaims() bool {
	return s.Sleep != nil && (s.Sleep.Reclaim == nil || *s.Sleep.Reclaim)
}

// FreezesBusy reports whether pods are frozen although they use the CPU.
func (s *WangellServiceSpec) FreezesBusy() bool { return s.Sleep != nil && s.Sleep.FreezeWhenBusy }

// stopAfter returns spec.sleep.stopAfter in seconds; 0 if it is left out or not valid.
func (s *WangellServiceSpec) stopAfter() int64 {
	if s.Sleep == nil || s.Sleep.StopAfter == nil || !isSleepTime(s.Sleep.StopAfter.Duration) {
		return 0
	}
	return int64(s.Sleep.StopAfter.Duration / time.Second)
}

// isSleepTime reports whether a field of Sleep may have a time.
func isSleepTime(d time.Duration) bool {
	return d >= time.Second && d <= maxSleepTime && d%time.Second == 0
}

// freezing checks the fields of spec.sleep that say when pods are frozen and stopped.
func (e *ValidationErrors) freezing(spec *WangellServiceSpec) {
	s := spec.Sleep
	if s == nil {
		return
	}
	p := specPath.Child("sleep")
	e.onPressure(spec)
	ok := true
	for _, f := range []struct {
		name  string
		given *metav1.Duration
		write string
	}{{"freezeAfter", s.FreezeAfter, "5s"}, {"stopAfter", s.StopAfter, "30m"}} {
		if f.given == nil {
			continue
		}
		if d := f.given.Duration; !isSleepTime(d) {
			e.add(p.Child(f.name), fmt.Sprintf("write %s: %s", f.name, f.write),
				"want whole seconds from 1s to 8760h, got %s", d)
			ok = false
		}
	}
	if !ok {
		return
	}
	stop := spec.stopAfter()
	if stop != 0 && spec.IdleTimeout != 0 && spec.IdleTimeout != stop {
		e.add(p.Child("stopAfter"), "write one of the two",
			"%s differs from idleTimeout, %d seconds, which means the same", s.StopAfter.Duration, spec.IdleTimeout)
		return
	}
	for _, last := range []int64{stop, spec.IdleTimeout, DefaultIdleTimeout} {
		if last == 0 {
			continue
		}
		if d := time.Duration(last) * time.Second; spec.FreezeAfter() >= d {
			e.add(p.Child("freezeAfter"), fmt.Sprintf("write stopAfter: %s, for example, or a shorter freezeAfter",
				hours(2*spec.FreezeAfter())),
				"the service would be stopped after %s, before its pods are frozen", hours(d))
		}
		break
	}
}

// onPressure checks spec.sleep.onPressure.
func (e *ValidationErrors) onPressure(spec *WangellServiceSpec) {
	p := specPath.Child("sleep", "onPressure")
	switch s := spec.Sleep; {
	case s.OnPressure == "" || s.OnPressure == PressureKeep:
	case s.OnPressure != PressureStop:
		e.add(p, "write onPressure: Keep, or onPressure: Stop", "want Keep or Stop, got %q", s.OnPressure)
	case s.FreezeAfter == nil:
		e.add(p, "write freezeAfter: 5s, for example, or leave it out",
			"has no effect without freezeAfter: it is about frozen pods")
	case spec.MinReplicas > 0:
		e.add(p, "write minReplicas: 0, or leave it out",
			"has no effect beside minReplicas: %d, with which another pod would start at once", spec.MinReplicas)
	}
}

// hours writes a duration without the zeros at its end: 30m, not 30m0s.
func hours(d time.Duration) string {
	switch {
	case d >= time.Hour && d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= time.Minute && d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return d.String()
}
