// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	"wangell.loutres.me/internal/runtime"
)

// Bounds of what daemons report of pods that the API server has not reported yet. A daemon is at most a moment ahead of
// the API server, and only for pods that are just starting.
const (
	unconfirmedAge       = 15 * time.Second
	maxUnconfirmedPods   = 64 // of one node
	maxUnconfirmedEvents = 16 // of one pod: two for each of some containers, and two for its network
)

// unconfirmed are reports of pods that the API server has not yet reported, or not yet as bound to a node. Nothing is
// done with them before it has: whoever has the key of a node can report any pod. The zero value is empty.
type unconfirmed struct {
	byNode map[string]*unconfirmedNode
}

// unconfirmedNode is the part of one node.
type unconfirmedNode struct {
	pods  map[string]*unconfirmedPod // by UID
	order []*unconfirmedPod          // oldest first
}

// unconfirmedPod is a pod and its reports, in the order in which they came.
type unconfirmedPod struct {
	uid     string
	first   time.Time
	reports []runtime.PodReport
}

// add keeps a report for unconfirmedAge. If there are too many pods of its node, the oldest is dropped; if there are
// too many reports of its pod, this one is.
func (u *unconfirmed) add(report runtime.PodReport, now time.Time) {
	if u.byNode == nil {
		u.byNode = map[string]*unconfirmedNode{}
	}
	name, uid := report.Pod.Node, report.Pod.ID
	n := u.byNode[name]
	if n == nil {
		n = &unconfirmedNode{pods: map[string]*unconfirmedPod{}}
		u.byNode[name] = n
	}
	p := n.pods[uid]
	if p == nil {
		if len(n.order) >= maxUnconfirmedPods {
			n.drop(0)
		}
		p = &unconfirmedPod{uid: uid, first: now}
		n.pods[uid], n.order = p, append(n.order, p)
	}
	if len(p.reports) < maxUnconfirmedEvents {
		p.reports = append(p.reports, report)
	}
}

// take returns and forgets the reports of a pod by one node, and how long the first of them has waited.
func (u *unconfirmed) take(node, uid string, now time.Time) (reports []runtime.PodReport, waited time.Duration) {
	n := u.byNode[node]
	if n == nil || n.pods[uid] == nil {
		return nil, 0
	}
	for i, p := range n.order {
		if p.uid == uid {
			n.drop(i)
			reports, waited = p.reports, now.Sub(p.first)
			break
		}
	}
	if len(n.order) == 0 {
		delete(u.byNode, node)
	}
	return reports, waited
}

// expire drops the pods that have waited too long, and calls lost with the number of each node.
func (u *unconfirmed) expire(now time.Time, lost func(node string, pods int)) {
	for name, n := range u.byNode {
		old := 0
		for len(n.order) > 0 && now.Sub(n.order[0].first) >= unconfirmedAge {
			n.drop(0)
			old++
		}
		if len(n.order) == 0 {
			delete(u.byNode, name)
		}
		if old > 0 {
			lost(name, old)
		}
	}
}

// drop forgets the pod with an index of order.
func (n *unconfirmedNode) drop(i int) {
	delete(n.pods, n.order[i].uid)
	n.order = append(n.order[:i:i], n.order[i+1:]...)
}

// awaitConfirmation keeps a report until the API server says to which node and service its pod belongs. The lock is
// held.
func (r *Runtime) awaitConfirmation(report runtime.PodReport) {
	if len(r.unconfirmed.byNode) == 0 {
		r.after(unconfirmedAge, r.expireUnconfirmed)
	}
	r.unconfirmed.add(report, time.Now())
}

// expireUnconfirmed drops reports whose pods the API server has not confirmed, and comes back while there are others.
func (r *Runtime) expireUnconfirmed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unconfirmed.expire(time.Now(), func(node string, pods int) {
		r.log.Warn("a daemon has reported pods that the API server does not have there; ignored", "node", node,
			"pods", pods)
	})
	if len(r.unconfirmed.byNode) > 0 {
		r.after(unconfirmedAge, r.expireUnconfirmed)
	}
}

// confirm handles what the daemon of a pod's node has reported before the API server bound the pod to that node. The
// lock is held.
func (r *Runtime) confirm(p *pod) {
	if p.node == "" {
		return
	}
	reports, waited := r.unconfirmed.take(p.node, p.rt.ID, time.Now())
	if len(reports) > 0 {
		r.log.Debug("a daemon's reports of a pod have waited for the API server", "service", string(p.service.key),
			"pod", p.name, "node", p.node, "waited", waited)
	}
	for _, report := range reports {
		r.reported(p, report)
	}
}
