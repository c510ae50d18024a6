// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the image has no time zones

	"github.com/robfig/cron/v3"
)

// maxPeriods bounds Sleep.Schedule.
const maxPeriods = 16

// PreparedPods is the number of pods that are kept prepared: Sleep.Prepared.
func (s *WangellServiceSpec) PreparedPods() int {
	if s.Sleep == nil {
		return 0
	}
	return int(s.Sleep.Prepared)
}

// Times returns when the period begins and ends, and the time zone in which to ask for that. An error begins with the
// name of the field; a validated period has none.
func (p *WarmPeriod) Times() (from, to cron.Schedule, zone *time.Location, err error) {
	if from, err = cronTimes(p.From); err != nil {
		return nil, nil, nil, fmt.Errorf("from: %w", err)
	}
	if to, err = cronTimes(p.To); err != nil {
		return nil, nil, nil, fmt.Errorf("to: %w", err)
	}
	if zone, err = zoneOf(p.TimeZone); err != nil {
		return nil, nil, nil, fmt.Errorf("timeZone: %w", err)
	}
	return from, to, zone, nil
}

// cronExample is what to write instead of a mistake.
const cronExample = `write a cron expression such as "0 8 * * MON-FRI"`

// cronTimes parses a cron expression that matches at some time. The parser itself would accept a time zone, which has
// a field of its own here, and @every, whose times depend on when one asks.
func cronTimes(text string) (cron.Schedule, error) {
	if text == "" {
		return nil, errors.New("missing")
	}
	if strings.Contains(text, "TZ=") || strings.HasPrefix(text, "@every") {
		return nil, fmt.Errorf("want minute, hour, day of month, month and day of week, got %q", text)
	}
	s, err := cron.ParseStandard(text)
	if err != nil {
		return nil, err
	}
	if s.Next(time.Unix(0, 0).UTC()).IsZero() {
		return nil, fmt.Errorf("%q is a time that never comes", text)
	}
	return s, nil
}

// zoneOf returns a time zone. It refuses Local, the zone of whatever machine runs the controller.
func zoneOf(name string) (*time.Location, error) {
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, fmt.Errorf("there is no time zone %q", name)
	}
	return zone, nil
}

// sleep checks spec.sleep.
func (e *ValidationErrors) sleep(spec *WangellServiceSpec) {
	s := spec.Sleep
	if s == nil {
		return
	}
	p := specPath.Child("sleep")
	e.prepared(spec)
	if s.Predict && spec.MinReplicas > 0 {
		e.add(p.Child("predict"), "write minReplicas: 0, or leave predict out",
			"has no effect beside minReplicas: %d, with which the service never sleeps", spec.MinReplicas)
	}
	if n := len(s.Schedule); n > maxPeriods {
		e.add(p.Child("schedule"), "put periods together, for example from: 0 8 * * MON-FRI",
			"want at most %d periods, got %d", maxPeriods, n)
		return
	}
	for i := range s.Schedule {
		period := p.Child("schedule").Index(i)
		for name, text := range map[string]string{"from": s.Schedule[i].From, "to": s.Schedule[i].To} {
			if _, err := cronTimes(text); err != nil {
				e.add(period.Child(name), cronExample, "%s", err)
			}
		}
		if _, err := zoneOf(s.Schedule[i].TimeZone); err != nil {
			e.add(period.Child("timeZone"), "write timeZone: Europe/Paris, for example", "%s", err)
		}
	}
}

// prepared checks spec.sleep.prepared.
func (e *ValidationErrors) prepared(s *WangellServiceSpec) {
	p := specPath.Child("sleep", "prepared")
	if s.Sleep.Prepared == 0 {
		return
	}
	e.pathInRange(p, int64(s.Sleep.Prepared))
	switch {
	case s.Template != nil:
		e.add(p, "leave it out", "needs a service that is described without template")
	case slices.ContainsFunc(s.Volumes, func(v Volume) bool { return v.Persistent != nil }):
		e.add(p, "leave it out", "cannot hold persistent volumes, which are mounted while a pod runs")
	case s.Strategy() == UpdateRecreate:
		e.add(p, "write updateStrategy: RollingUpdate, or leave it out",
			"needs updateStrategy: RollingUpdate: a prepared pod is there beside the one that runs")
	case s.PullsLazily():
		e.add(p, "write imagePull: {mode: Full}, or leave it out", "needs the whole image, but imagePull.mode is Lazy")
	}
}
