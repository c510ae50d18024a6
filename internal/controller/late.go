// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"time"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

const (
	// slowStop is how long a process may take to end after its stop signal before that is reported.
	slowStop = 2 * time.Second
	// kubeletSlack is added on a cluster, where the time of the signal is estimated: kubelet of a busy node sends it late,
	// and reports late that the process has ended.
	kubeletSlack = 3 * time.Second
	// lateTogether is the time in which such pods are reported together, and lateAlone how many of them have an event of
	// their own. The status of each service names them in any case.
	lateTogether = time.Second
	lateAlone    = 10
)

// laggards reports pods that do not end soon after their stop signals. It belongs to the loop.
type laggards struct {
	loop    *loop
	nodes   *nodes
	events  *hub
	changed *changedSet
	cluster bool
	late    []latePod // those not reported yet
}

// latePod is a pod that did not end soon after its stop signal.
type latePod struct {
	service runtime.Key
	name    string
	text    string
}

// ending reports a pod if it does not end soon after its stop signal.
func (l *laggards) ending(p *pod, end runtime.Ending) {
	patience := slowStop
	if l.cluster {
		patience += kubeletSlack
	}
	if end.Grace > patience {
		l.loop.after(end.Signal+patience, func() { l.slow(p, end) })
	}
}

// slow notes a pod that has not ended on its stop signal, unless its node may not have reported that.
func (l *laggards) slow(p *pod, end runtime.Ending) {
	if p.service.pod(p.ref) != p || p.state() == lifecycle.PodExited || !l.nodes.heard(p) ||
		end.Ended != nil && end.Ended() {
		return
	}
	name := cmp.Or(p.rt.Name, p.rt.ID)
	p.slow = fmt.Sprintf("pod %s did not end within %s of its stop signal: it is killed %s after the signal. %s",
		name, slowStop, end.Grace.Round(time.Second), lateAdvice)
	l.changed.check(p.service)
	if l.late = append(l.late, latePod{p.service.key, name, p.slow}); len(l.late) == 1 {
		l.loop.after(lateTogether, l.report)
	}
}

// report reports the pods that slow has noted.
func (l *laggards) report() {
	list := l.late
	l.late = nil
	if len(list) > lateAlone {
		l.events.report("", SeverityWarning, lateSummary(list))
		return
	}
	for _, p := range list {
		l.events.report(p.service, SeverityWarning, p.text)
	}
}

// lateAdvice says what to do about pods that do not end.
const lateAdvice = "Let the program end on SIGTERM, or name the signal on which it ends as stopSignal, " +
	"or lower terminationGracePeriodSeconds"

// lateSummary reports many pods in one sentence.
func lateSummary(list []latePod) string {
	services := map[runtime.Key]bool{}
	for _, p := range list {
		services[p.service] = true
	}
	return fmt.Sprintf("%d pods of %d services, pod %s of %s among them, did not end within %s of their stop signals: "+
		"they are killed after their grace periods. The status of each service has the details. %s",
		len(list), len(services), list[0].name, list[0].service, slowStop, lateAdvice)
}
