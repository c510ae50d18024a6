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
					d.awaitListening(s, p)
				}
			}
		}
		s.mu.Unlock()
	}
}
