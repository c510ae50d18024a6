// SPDX-License-Identifier: Apache-2.0

package node

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// podReports keeps the latest reports of all pods on the node, to send them again in every session.
type podReports struct {
	mu   sync.Mutex
	pods map[string]*reportedPod // by UID
}

// reportedPod holds the report of a pod's network and the latest report of each of its containers, by name.
type reportedPod struct {
	network    runtime.PodReport
	containers map[string]runtime.PodReport
}

// add records a report and sends it. Reports are sent with mu held, so the newest of a pod is sent last.
func (r *podReports) add(report runtime.PodReport, send func(wire.Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pods == nil {
		r.pods = map[string]*reportedPod{}
	}
	p := r.pods[report.Pod.ID]
	switch {
	case report.Event == runtime.PodNetworkReady:
		r.pods[report.Pod.ID] = &reportedPod{network: report, containers: map[string]runtime.PodReport{}}
	case p == nil || p.network.Pod.Netns != report.Pod.Netns:
		// The report is about a network that is gone already.
	case report.Event == runtime.PodNetworkGone:
		delete(r.pods, report.Pod.ID)
	default:
		p.containers[report.Container] = report
	}
	send(message(report))
}

// sendAll sends the reports of all pods, in a fixed order.
func (r *podReports) sendAll(send func(wire.Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(r.pods)) {
		p := r.pods[id]
		send(message(p.network))
		for _, name := range slices.Sorted(maps.Keys(p.containers)) {
			send(message(p.containers[name]))
		}
	}
}

// message converts a report to the message that carries it.
func message(r runtime.PodReport) *wire.PodReport {
	return &wire.PodReport{
		Event: uint8(r.Event), Service: string(r.Pod.Service), UID: r.Pod.ID, Name: r.Name, Container: r.Container,
		Addr: r.Pod.Addr, Netns: r.Pod.Netns, SpecHash: r.Pod.SpecHash, At: r.At, Code: r.Code,
	}
}

// reportPod handles an event that the container runtime reports.
func (d *daemon) reportPod(r runtime.PodReport) {
	d.reports.add(r, d.send)
	if r.Event == runtime.PodContainerExited {
		d.processExited(string(r.Pod.Service), r.Pod.Addr, r.Pod.Netns)
		d.reportLog(r)
	}
}

// processExited handles the end of a process in a network namespace: the pods there may have stopped listening.
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
