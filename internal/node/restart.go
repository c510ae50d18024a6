// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"

	"wangell.loutres.me/internal/runtime"
)

// reportPod handles an event that the container runtime reports.
func (d *daemon) reportPod(r runtime.PodReport) {
	d.reports.add(r, d.send)
	if r.Event == runtime.PodContainerExited {
		d.processExited(string(r.Pod.Service), r.Pod.Addr, r.Pod.Netns)
	}
}

// processExited checks the pods of a service in the network namespace in which a process ended.
func (d *daemon) processExited(name string, addr netip.Addr, netns string) {
	for _, s := range d.allServices() {
		s.mu.Lock()
		if s.name == name {
			for _, p := range s.pods {
				if p.home && p.serving && p.addr.Addr() == addr && p.netns == netns {
					d.awaitRestart(s, p)
				}
			}
		}
		s.mu.Unlock()
	}
}

// awaitRestart stops new flows to a pod until it listens again, because its process may be restarted in place. It does
// nothing if the pod still listens: then another of its processes ended. s.mu is held.
func (d *daemon) awaitRestart(s *service, p *pod) {
	if w, err := newListenWatch(p.netns, p.addr); err == nil {
		still := w.isListening()
		w.close()
		if still {
			return
		}
	}
	if err := d.gate.Drain(s.addr, p.id); err != nil {
		d.log.Error("cannot stop new flows to a pod whose process ended", "service", s.name, "pod", p.id, "error", err)
		return
	}
	p.serving, p.restarting = false, true
	p.endProbes()
	d.log.Info("a pod's process ended: no new flows until it listens again", "service", s.name, "pod", p.id)
	if err := d.startWatch(s, p); err != nil {
		d.log.Warn("cannot watch for a pod to listen again", "service", s.name, "pod", p.id, "error", err)
	}
}
