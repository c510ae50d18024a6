// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/decide/reservation"
)

// reportPatience is how long after the start of this process the daemons may take to connect and to report the pods
// that existed before it.
const reportPatience = 30 * time.Second

const (
	// lendAfter is how long a pod must have been frozen before it gives back its requests: a shorter freeze costs the
	// API server nothing.
	lendAfter = 5 * time.Second
	// kubeletAnswers is how long a kubelet may take to withdraw a refusal.
	kubeletAnswers = 10 * time.Second
	// resizeAgain is the pause before another attempt to find out whether pods can be resized at all.
	resizeAgain = 10 * time.Minute
)

// stillness is whether a pod is frozen.
type stillness uint8

const (
	stillUnknown stillness = iota // not reported yet
	stillFrozen
	stillRuns
)

// lending is the state of a pod's requests. It decides how to change them.
type lending struct {
	pod   *corev1.Pod // the last state from the API server; nil before the first
	still stillness
	since time.Time       // since when still has this value
	keeps reservation.Set // what the pod keeps even while it is frozen
	kept  string          // why
	// keptAt is when a kubelet's refusal was last taken into account.
	keptAt time.Time
	short  string // why it did not get its requests back
}

// observe records the pod's state from the API server, unless a newer one is known.
func (l *lending) observe(o *corev1.Pod) {
	if l.pod == nil || parseVersion(o.ResourceVersion) >= parseVersion(l.pod.ResourceVersion) {
		l.pod = o
	}
}

// concerns reports whether the pod's requests may need a change.
func (l *lending) concerns() bool {
	return l.pod != nil && (l.still == stillFrozen || reservation.Noted(l.pod))
}

// next returns the step to take now, or when to ask again; a zero step and a zero time if there is nothing to do. No
// pod gives anything back while resizing is not possible.
func (l *lending) next(now, opened time.Time, possible bool) (step reservation.Step, at time.Time, err error) {
	if !l.concerns() {
		return step, at, nil
	}
	give := reservation.Set{CPU: true, Memory: true}
	switch {
	case l.still == stillRuns, !possible:
		give = reservation.Set{}
	case l.still == stillUnknown: // the daemon of its node has not reported it to this process
		if at = opened.Add(reportPatience); now.Before(at) {
			return step, at, nil
		}
		give = reservation.Set{}
	case now.Before(l.since.Add(lendAfter)):
		return step, l.since.Add(lendAfter), nil
	}
	if l.still == stillFrozen {
		l.refused(now)
	}
	step, err = reservation.Next(l.pod, give.Without(l.keeps))
	return step, time.Time{}, err
}

// refused makes a frozen pod keep the requests that its kubelet refuses to lower: first memory, which kubelet does
// not change for containers with swap, and if the refusal remains, CPU as well.
func (l *lending) refused(now time.Time) {
	why, forGood := reservation.Pending(l.pod)
	cpu, memory := reservation.Given(l.pod)
	if !forGood || cpu+memory == 0 || now.Before(l.keptAt.Add(kubeletAnswers)) {
		return
	}
	if memory > 0 {
		l.keeps.Memory = true
	} else {
		l.keeps.CPU = true
	}
	l.kept, l.keptAt = why, now
}

// reservations returns the pod's part of its service's Reservations. why is the reason why pods cannot be resized at
// all.
func (l *lending) reservations(name, why string) (r reservation.Summary) {
	if l.pod == nil {
		return r
	}
	pending, _ := reservation.Pending(l.pod)
	if pending == "" {
		r.CPU, r.Memory = reservation.Given(l.pod)
	}
	switch {
	case l.still == stillRuns && l.short != "":
		r.Short = fmt.Sprintf("pod %s runs with less reserved than it requests: %s", name, l.short)
	case l.still == stillRuns && pending != "" && !reservation.Noted(l.pod):
		r.ShortOn = l.pod.Spec.NodeName
		r.Short = fmt.Sprintf("pod %s runs with less reserved than it requests, because node %s has no room for it: %s",
			name, l.pod.Spec.NodeName, pending)
	case l.still == stillFrozen && why != "":
		r.Kept = "frozen pods keep their requests: " + why
	case l.still == stillFrozen && l.kept != "":
		r.Kept = fmt.Sprintf("pod %s keeps requests while it is frozen: %s", name, l.kept)
	}
	return r
}
