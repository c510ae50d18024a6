// SPDX-License-Identifier: Apache-2.0

package kube

import "time"

// nodePatience is how long a pod that a Start waits for may be bound to a node without a daemon. The daemon may just be
// starting; and a node that is dead is none to the scheduler only when Kubernetes has noticed, which takes longer than
// a client waits.
const nodePatience = time.Second

// SetNodes implements runtime.Cluster.
func (r *Runtime) SetNodes(names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = make(map[string]bool, len(names))
	for _, name := range names {
		r.nodes[name] = true
	}
	for _, p := range r.byUID {
		r.watchNode(p)
	}
}

// lost tells whether a Start waits in vain for a pod, because its node has no daemon, and another has. The lock is held.
func (r *Runtime) lost(p *pod) bool {
	return r.byUID[p.rt.ID] == p && p.node != "" && len(r.nodes) > 0 && !r.nodes[p.node] &&
		!p.claimed && !p.stopping && !p.leaving && !p.failed && len(p.service.starts) > 0
}

// watchNode has a pod replaced that is bound to a node without a daemon, if that does not change. The lock is held.
func (r *Runtime) watchNode(p *pod) {
	if !r.lost(p) {
		return
	}
	r.after(nodePatience, func() {
		r.mu.Lock()
		lost, s, node := r.lost(p), p.service, p.node
		if lost {
			p.leaving = true // whatever a daemon tells of it from now on
		}
		r.mu.Unlock()
		if !lost {
			return
		}
		r.log.Warn("the node of a new pod has no daemon: the pod is deleted, for another to take its place", "service", string(s.key), "pod", p.name, "node", node)
		// Not by force: its node may be well, and only its daemon ill.
		if err := r.delete(r.ctx, s, p, 1); err != nil {
			r.log.Warn("it cannot be deleted", "service", string(s.key), "pod", p.name, "error", err)
			r.mu.Lock()
			p.leaving = false
			r.watchNode(p)
			r.mu.Unlock()
		}
	})
}
