// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// orphanGrace is the time between SIGTERM and SIGKILL for a pod whose service is not known.
const orphanGrace = 10 * time.Second

// adopter takes over pods that this controller did not start: those of an earlier controller and, on a cluster, those
// created or deleted by others. It belongs to the loop.
type adopter struct {
	engine *engine
	early  []func() // what the cluster reported before the services were known
}

// adopt takes over running pods: of each service those with its present spec, the newest first, up to the number it
// may have. The others are stopped. A pod of another spec comes first if no pod may start beside it. On a cluster,
// all pods of services are adopted, and none is stopped: they belong to the cluster.
func (a *adopter) adopt(found []runtime.Pod) {
	slices.SortFunc(found, func(a, b runtime.Pod) int { return cmp.Compare(b.Started, a.Started) })
	for _, rt := range found {
		if a.engine.cluster != nil {
			a.appeared(rt)
			continue
		}
		s := a.engine.table.services[rt.Service]
		reason, grace := unfit(s, rt)
		if reason == "" {
			a.take(s, rt, func(r lifecycle.Ref) lifecycle.Event { return lifecycle.Adopted{Ref: r} })
			if s.hash != rt.SpecHash {
				a.engine.step(s, lifecycle.SpecChanged{Spec: s.lifecycle(false), Restart: true})
			}
			continue
		}
		text := fmt.Sprintf("pod %s was found and is stopped: %s", rt.ID, reason)
		a.engine.events.report(rt.Service, "", status.SeverityInfo, text)
		a.engine.runner.stopOrphan(rt, grace)
	}
}

// unfit returns why a running pod cannot be adopted, and the grace with which to stop it; an empty reason if it can.
// s is nil if there is no such service.
func unfit(s *service, rt runtime.Pod) (reason string, grace time.Duration) {
	switch {
	case s == nil:
		return "there is no such service", orphanGrace
	case rt.Started == 0:
		return "its process does not run", 0
	case s.hash != rt.SpecHash && (!s.lifecycle(false).Single || len(s.pods) > 0):
		return "no service has its spec", s.grace()
	case !rt.Addr.IsValid() || len(s.pods) >= int(s.spec.Spec.MaxReplicas):
		return "the service has a newer one", s.grace()
	}
	return "", 0
}

// take adds a pod that the machine did not start to a service.
func (a *adopter) take(s *service, rt runtime.Pod, event func(lifecycle.Ref) lifecycle.Event) {
	p := s.addPod(s.machine.NextRef())
	p.returned = true
	if rt.SpecHash != "" && rt.SpecHash != s.hash {
		p.probe = "" // the probe of its own spec is not known
	}
	a.engine.runner.identify(p, rt)
	a.engine.step(s, event(p.ref))
	if !slices.Contains(s.machine.Pods(), p.ref) {
		a.engine.table.removePod(p) // there are too many
	}
}

// appeared adopts a pod of the cluster that others started, or that runs already. It ignores pods of other services.
// A pod without a network is reported again when it has one.
func (a *adopter) appeared(rt runtime.Pod) {
	s := a.engine.table.services[rt.Service]
	if s == nil || s.machine.Deleted() || !rt.Addr.IsValid() || a.engine.table.byRuntime[rt.ID] != nil {
		return
	}
	a.take(s, rt, func(r lifecycle.Ref) lifecycle.Event {
		if rt.Started != 0 || rt.Leaving {
			return lifecycle.Adopted{Ref: r, Leaving: rt.Leaving}
		}
		return lifecycle.Appeared{Ref: r}
	})
	if spec := s.lifecycle(true); spec.Single && !rt.Leaving && rt.SpecHash != "" && rt.SpecHash != s.hash {
		a.engine.step(s, lifecycle.SpecChanged{Spec: spec, Restart: true}) // nothing else replaces it
	}
}

// whenSynced runs f on the loop, once the services are known.
func (a *adopter) whenSynced(f func()) {
	a.engine.loop.post(func() {
		if a.engine.synced {
			f()
			return
		}
		a.early = append(a.early, f)
	})
}

// adoptEarly adopts the pods that the cluster reported before the services were known.
func (a *adopter) adoptEarly() {
	early := a.early
	a.early = nil
	for _, f := range early {
		f()
	}
}

// readCluster follows the pods that others create and delete, until the controller ends.
func (a *adopter) readCluster() {
	e := a.engine
	for {
		select {
		case rt, open := <-e.cluster.Appeared():
			if !open {
				return
			}
			a.whenSynced(func() { a.appeared(rt) })
		case leave, open := <-e.cluster.Leaving():
			if !open {
				return
			}
			a.whenSynced(func() {
				if p := e.table.byRuntime[leave.PodID]; p != nil {
					e.step(p.service, lifecycle.Leaving{Ref: p.ref, Why: leave.Cause})
				}
			})
		case end, open := <-e.cluster.Ending():
			if !open {
				return
			}
			a.whenSynced(func() {
				if p := e.table.byRuntime[end.PodID]; p != nil {
					e.runner.laggards.ending(p, end)
				}
			})
		case <-e.runner.workers.ctx.Done():
			return
		}
	}
}

// lookFor adopts the existing pods of a new service, and then begins it. If they cannot be listed, the cluster
// reports them as they go.
func (a *adopter) lookFor(key v1alpha1.Key) {
	e := a.engine
	defer e.loop.post(func() {
		if s := e.table.services[key]; s != nil {
			e.begin(s)
		}
	})
	ctx := e.runner.workers.ctx
	pods, err := e.cluster.List(ctx)
	if err != nil {
		if ctx.Err() == nil {
			text := "its existing pods cannot be listed: " + bare(key, err)
			e.events.report(key, v1alpha1.EventProblem, status.SeverityWarning, text)
		}
		return
	}
	for _, rt := range pods {
		if rt.Service == key {
			e.loop.post(func() { a.appeared(rt) })
		}
	}
}
