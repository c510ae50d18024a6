// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/runtime"
)

// Bounds of the logs that are kept of containers that have ended. Those of a pod have at most runtime.MaxPodLog bytes.
const (
	maxEndedPods = 8        // of a service
	maxEndedLogs = 32 << 20 // bytes of all services
)

// endedLogs keeps the ends of the logs of pods' containers that have ended: kubelet removes them with the pod.
type endedLogs struct {
	of    map[v1alpha1.Key][]*endedLog // oldest first
	byUID map[string]*endedLog
	order []*endedLog // oldest first; a log that was dropped stays until it is the oldest
	bytes int
}

// endedLog has the logs of the containers of a pod.
type endedLog struct {
	service    v1alpha1.Key
	uid        string
	containers []containerLog // in the order in which they ended
	dropped    bool
}

type containerLog struct{ name, text string }

// put keeps the end of a container's log, in place of an earlier one of the same container.
func (l *endedLogs) put(service v1alpha1.Key, uid, container, whole string) {
	if whole == "" {
		return
	}
	p := l.byUID[uid]
	if p == nil {
		p = &endedLog{service: service, uid: uid}
		if l.of == nil {
			l.of, l.byUID = map[v1alpha1.Key][]*endedLog{}, map[string]*endedLog{}
		}
		l.of[service], l.byUID[uid] = append(l.of[service], p), p
		l.order = append(l.order, p)
	}
	l.bytes -= p.size()
	p.containers = slices.DeleteFunc(p.containers, func(c containerLog) bool { return c.name == container })
	p.containers = append(p.containers, containerLog{container, text.LastLines(whole, runtime.MaxPodLog)})
	p.trim()
	l.bytes += p.size()
	if all := l.of[service]; len(all) > maxEndedPods {
		l.drop(all[0])
	}
	for l.bytes > maxEndedLogs || len(l.order) > 0 && l.order[0].dropped {
		l.drop(l.order[0])
		l.order = l.order[1:]
	}
}

// drop forgets the logs of a pod.
func (l *endedLogs) drop(p *endedLog) {
	if p.dropped {
		return
	}
	p.dropped = true
	l.bytes -= p.size()
	p.containers = nil
	delete(l.byUID, p.uid)
	left := slices.DeleteFunc(l.of[p.service], func(q *endedLog) bool { return q == p })
	if l.of[p.service] = left; len(left) == 0 {
		delete(l.of, p.service)
	}
}

// forget forgets the logs of a service.
func (l *endedLogs) forget(service v1alpha1.Key) {
	for _, p := range slices.Clone(l.of[service]) {
		l.drop(p)
	}
}

// container returns the log of a container of a pod, and whether there is one.
func (l *endedLogs) container(uid, name string) (log string, ok bool) {
	if p := l.byUID[uid]; p != nil {
		for _, c := range p.containers {
			if c.name == name {
				return c.text, true
			}
		}
	}
	return "", false
}

// text returns what a container of a service's ended pods has written, except of those to skip, the oldest pod first:
// the last lines only, unless tail is negative.
func (l *endedLogs) text(service v1alpha1.Key, container string, tail int, skip func(uid string) bool) string {
	var out strings.Builder
	for _, p := range l.of[service] {
		if log, ok := l.container(p.uid, container); ok && !skip(p.uid) {
			out.WriteString(log)
		}
	}
	all := strings.SplitAfter(out.String(), "\n")
	if all[len(all)-1] == "" {
		all = all[:len(all)-1]
	}
	if tail >= 0 && tail < len(all) {
		all = all[len(all)-tail:]
	}
	return strings.Join(all, "")
}

// logOverhead is added to the size of each log, in bytes, so that the number of short logs is bounded as well.
const logOverhead = 64

// size is the size of a pod's logs, in bytes, for the limits.
func (p *endedLog) size() int {
	n := 0
	for _, c := range p.containers {
		n += len(c.text) + len(c.name) + logOverhead
	}
	return n
}

// trim shortens the logs of a pod, those that ended first at first, until they are small enough together.
func (p *endedLog) trim() {
	for i := range p.containers {
		over := p.size() - runtime.MaxPodLog
		if over <= 0 {
			return
		}
		c := &p.containers[i]
		c.text = text.LastLines(c.text, max(len(c.text)-over, 0))
	}
	for p.size() > runtime.MaxPodLog {
		p.containers = p.containers[1:]
	}
}
