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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxPeriods bounds Sleep.Schedule.
const maxPeriods = 16

// Sleep says when the service sleeps, and when a pod runs ahead of its first client.
type Sleep struct {
	// Schedule lists periods in which a pod runs even while the service is unused, at most 16. Default: none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Schedule []WarmPeriod `json:"schedule,omitempty"`
	// Predict starts a pod before the service is likely to be used, and decides for how long it is kept without a packet,
	// from the gaps between its uses so far. While these are too few or too different, idleTimeout counts. Default: false.
	// +optional
	Predict bool `json:"predict,omitempty"`
	// FreezeAfter is the time without a packet after which the service's pods are frozen, 1s-8760h: their processes keep
	// their memory and connections, and run on when a packet needs an answer. It must be less than stopAfter. Default:
	// pods are not frozen.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,8}([.][0-9]{1,9})?(ms|s)|[0-9]{1,6}([.][0-9]{1,9})?m|[0-9]{1,4}([.][0-9]{1,9})?h){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="want whole seconds from 1s to 8760h: write freezeAfter: 5s, for example"
	FreezeAfter *metav1.Duration `json:"freezeAfter,omitempty"`
	// FreezeWhenBusy freezes pods even if they use the CPU without having been sent anything. Default: false, because
	// such pods work in the background.
	// +optional
	FreezeWhenBusy bool `json:"freezeWhenBusy,omitempty"`
	// Reclaim moves the memory of frozen pods to the swap of their machine, if it has one. Default: true.
	// +optional
	Reclaim *bool `json:"reclaim,omitempty"`
	// OnPressure says what happens to frozen pods when their node is short of memory, or has no room for the requests
	// of a pod that is thawed. Keep: nothing. Stop: the pods of the service are stopped early, with their grace
	// period, if no other such service has been unused for longer. It needs freezeAfter and minReplicas 0. Default:
	// Keep.
	// +optional
	// +kubebuilder:validation:Enum=Keep;Stop
	OnPressure PressurePolicy `json:"onPressure,omitempty"`
	// StopAfter is the time without a packet after which the service sleeps without a pod, 1s-8760h. It is another way to
	// write idleTimeout, which must not differ. Default: idleTimeout.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,8}([.][0-9]{1,9})?(ms|s)|[0-9]{1,6}([.][0-9]{1,9})?m|[0-9]{1,4}([.][0-9]{1,9})?h){1,4}$') && duration(self) >= duration('1s') && duration(self) <= duration('8760h')",message="want whole seconds from 1s to 8760h: write stopAfter: 30m, for example"
	StopAfter *metav1.Duration `json:"stopAfter,omitempty"`
	// Prepared is the number of pods that are kept complete but for the start of their program, so that a wake only has to
	// start one, 0-16. Each has a network, and takes about 8 MB. It needs updateStrategy: RollingUpdate, and neither
	// persistent volumes nor imagePull.mode: Lazy. Default: 0. One machine only.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 16",message="want a number from 0 to 16: write prepared: 1, for example"
	Prepared int32 `json:"prepared,omitempty"`
}

// PreparedPods is the number of pods that are kept prepared: Sleep.Prepared.
func (s *WangellServiceSpec) PreparedPods() int {
	if s.Sleep == nil {
		return 0
	}
	return int(s.Sleep.Prepared)
}

// WarmPeriod is a period that comes again and again. Its times are cron expressions of five fields: minute, hour, day
// of month, month, day of week; or @hourly, @daily, @weekly, @monthly or @yearly.
type WarmPeriod struct {
	// From is when the period begins, for example 0 8 * * MON-FRI. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	From string `json:"from"`
	// To is when it ends, for example 0 18 * * MON-FRI. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	To string `json:"to"`
	// TimeZone is the name of the time zone of both in the IANA database, for example Europe/Paris. Default: UTC.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`
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
