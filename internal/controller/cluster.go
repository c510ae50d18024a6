// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/wire"
)

// readCluster tells machines of pods that others start and take away.
func (c *Controller) readCluster() {
	for {
		select {
		case rt, open := <-c.cluster.Appeared():
			if !open {
				return
			}
			c.post(func() { c.whenSynced(func() { c.appeared(rt) }) })
		case id, open := <-c.cluster.Leaving():
			if !open {
				return
			}
			c.post(func() {
				c.whenSynced(func() {
					if p := c.byRuntime[id]; p != nil {
						c.step(p.service, lifecycle.Leaving{Ref: p.ref})
					}
				})
			})
		case <-c.ctx.Done():
			return
		}
	}
}

// whenSynced runs f once the services are known.
func (c *Controller) whenSynced(f func()) {
	if c.synced {
		f()
		return
	}
	c.early = append(c.early, f)
}

// adoptEarly takes what the cluster told before the services were known.
func (c *Controller) adoptEarly() {
	early := c.early
	c.early = nil
	for _, f := range early {
		f()
	}
}

// appeared takes a pod of the cluster that was not asked for, or runs already. What is none of a service's is none of
// ours, and a pod without a network will be told of when it has one.
func (c *Controller) appeared(rt runtime.Pod) {
	s := c.services[rt.Service]
	if s == nil || s.machine.Deleted() || !rt.Addr.IsValid() || c.byRuntime[rt.ID] != nil {
		return
	}
	c.take(s, rt, func(r lifecycle.Ref) lifecycle.Event {
		if rt.Started != 0 || rt.Leaving {
			return lifecycle.Adopted{Ref: r, Leaving: rt.Leaving}
		}
		return lifecycle.Appeared{Ref: r}
	})
}

// seen tells the cluster what a node's daemon saw.
func (c *Controller) seen(from wire.Peer, m *wire.PodReport) {
	if c.cluster == nil {
		return
	}
	pod := runtime.Pod{
		ID: m.UID, Service: runtime.Key(m.Service), SpecHash: m.SpecHash, Addr: m.Addr, Netns: m.Netns, Node: from.Node,
	}
	if info := c.node(from.Node).info; info != nil {
		pod.NodeAddr = info.Addr
	}
	if sight := runtime.PodEvent(m.Event); sight == runtime.PodContainerStarted {
		pod.Started = m.At
	}
	c.cluster.ReportPod(runtime.PodReport{
		Event: runtime.PodEvent(m.Event), Pod: pod, Name: m.Name, Container: m.Container, At: m.At, Code: m.Code,
	})
}
