// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

// nodePatience is how long a pod that a Start waits for may be bound to a node without a daemon. The daemon may just be
// starting. And the scheduler avoids a dead node only once Kubernetes has noticed, which takes longer than a client
// waits.
const nodePatience = time.Second

// inheritedPatience is the same for a pod that existed before this process, from the start of the process on. At an
// upgrade, the daemons are replaced together with the controller.
const inheritedPatience = 10 * time.Second

// patience returns how long a pod may be bound to a node without a daemon while a Start waits for it. The lock is held.
func (r *Runtime) patience(p *pod, now time.Time) time.Duration {
	if p.is(podInherited) {
		return max(nodePatience, r.opened.Add(inheritedPatience).Sub(now))
	}
	return nodePatience
}

// Inherited implements runtime.Cluster.
func (r *Runtime) Inherited(k v1alpha1.Key) []string { return r.inherited(k, time.Now()) }

func (r *Runtime) inherited(k v1alpha1.Key, now time.Time) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.services[k]
	if s == nil || now.Sub(r.opened) >= reportPatience {
		return nil
	}
	var out []string
	for uid, p := range s.pods {
		if p.is(podInherited) && p.stays() && !p.is(podExited) && p.exit == nil {
			out = append(out, uid)
		}
	}
	slices.Sort(out)
	return out
}

// SetNodes implements runtime.Cluster.
func (r *Runtime) SetNodes(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = make(map[string]bool, len(names))
	for _, name := range names {
		r.nodes[name] = true
	}
	for _, p := range r.byUID {
		r.checkNode(p)
		r.checkLost(p)
	}
}

// lostAfter is the grace period before a single pod on a node without a daemon is reported as lost, the same as the
// controller's for the daemon of a known pod.
const lostAfter = 5 * time.Second

// lost returns the message for a single pod whose node has no daemon: it may run, and no other starts beside it. Pods
// that a daemon has already reported to this process are handled by the controller. The lock is held.
func (r *Runtime) lost(p *pod) (reason string, ok bool) {
	if r.byUID[p.rt.ID] != p || p.owner != ownerDeployment || p.is(podDelivered) || p.node == "" || len(r.nodes) == 0 ||
		r.nodes[p.node] {
		return "", false
	}
	return fmt.Sprintf("node %s does not answer, and pod %s may still run there: no other starts beside it. Once the "+
		"machine is certainly off, delete the Node, or kubectl taint node %s "+
		"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute", p.node, p.name, p.node), true
}

// checkLost schedules the report of a lost single pod on a node without a daemon, and withdraws it once the node has
// a daemon. The lock is held.
func (r *Runtime) checkLost(p *pod) {
	if _, ok := r.lost(p); !ok {
		if p.service.reported.lost && r.nodes[p.node] {
			r.reportTrouble(p.service, trouble{})
		}
		return
	}
	r.after(lostAfter, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if reason, ok := r.lost(p); ok {
			r.reportTrouble(p.service, trouble{reason: reason, lost: true})
		}
	})
}

// misplaced reports whether a Start cannot get its pod because the pod's node has no daemon, while another node has
// one. The lock is held.
func (r *Runtime) misplaced(p *pod) bool {
	return r.byUID[p.rt.ID] == p && p.node != "" && len(r.nodes) > 0 && !r.nodes[p.node] &&
		!p.is(podDelivered) && p.stays() && len(p.service.waiters) > 0
}

// checkNode replaces a pod on a node without a daemon, unless a daemon appears soon. The lock is held.
func (r *Runtime) checkNode(p *pod) {
	if !r.misplaced(p) {
		return
	}
	r.after(r.patience(p, time.Now()), func() {
		r.mu.Lock()
		misplaced, s, node := r.misplaced(p), p.service, p.node
		if misplaced {
			p.set(podLeaving) // even if a daemon reports it later
		}
		r.mu.Unlock()
		if !misplaced {
			return
		}
		r.log.Warn("the node of a pod has no daemon: deleting the pod, so that another takes its place",
			"service", string(s.key), "pod", p.name, "node", node)
		// Not by force: the node may be healthy, and only its daemon down.
		if err := r.deletePod(r.ctx, s, p.name, p.rt.ID, new(int64(1))); err != nil {
			r.log.Warn("cannot delete the pod", "service", string(s.key), "pod", p.name, "error", err)
			r.mu.Lock()
			p.unset(podLeaving)
			r.checkNode(p)
			r.mu.Unlock()
		}
	})
}
