// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

// Traffic counts what went through the gate. Bytes are IP lengths; In is client to pod.
type Traffic struct {
	OpenFlows uint32 `json:"openFlows"`
	NewFlows  uint64 `json:"newFlows"`
	BytesIn   uint64 `json:"bytesIn"`
	BytesOut  uint64 `json:"bytesOut"`
}

// Status is a service as it is.
type Status struct {
	// Service is the manifest with its Status. The manifest must not be changed.
	Service v1alpha1.WangellService `json:"service"`
	Pods    []PodStatus             `json:"pods,omitempty"`
	// Serving is how many pods get new flows, Desired how many there are to be now: 0 while the service sleeps.
	Serving int `json:"serving"`
	Desired int `json:"desired"`
	// NoDaemon: no daemon at all has been connected for some seconds, so that nobody serves. Only StatusOf tells it.
	NoDaemon bool `json:"-"`
	// LastWake is the last wake; nil if there was none.
	LastWake *lifecycle.Waterfall `json:"lastWake,omitempty"`
	// Traffic is that of all pods since the controller started, and of adopted ones since they did.
	Traffic Traffic `json:"traffic"`
}

// PodStatus is a pod as it is.
type PodStatus struct {
	// ID is the runtime's; it is empty while the pod has no network yet.
	ID   string     `json:"id,omitempty"`
	Addr netip.Addr `json:"address,omitzero"`
	// Node is its home node; empty while it has no network yet.
	Node string `json:"node,omitempty"`
	// State is starting, serving, draining, stopping or exited.
	State   string    `json:"state"`
	Started time.Time `json:"started,omitzero"`
	Traffic Traffic   `json:"traffic"`
}

// Status returns all services, sorted by namespace and name. After the controller's end there are none.
func (c *Controller) Status() []Status {
	var out []Status
	c.call(func() {
		out = make([]Status, 0, len(c.services))
		for _, s := range c.services {
			out = append(out, s.status())
		}
	})
	slices.SortFunc(out, func(a, b Status) int {
		return strings.Compare(a.Service.Namespace+"/"+a.Service.Name, b.Service.Namespace+"/"+b.Service.Name)
	})
	return out
}

func (s *service) status() Status {
	st := Status{Service: *s.spec, Traffic: s.traffic, Serving: s.machine.Serving(), Desired: s.machine.Desired()}
	if s.wake != nil {
		w := *s.wake
		st.LastWake = &w
	}
	w := &st.Service.Status
	*w = v1alpha1.WangellServiceStatus{
		LoadBalancerIP: s.addr.Addr().String(), State: s.machine.State().String(), Message: s.machine.Message(),
	}
	if w.Message == "" {
		w.Message = s.imageErr
	}
	if s.last != 0 {
		w.LatestRequest = &metav1.Time{Time: s.last.Wall()}
	}
	for _, p := range s.pods {
		ps := p.status()
		st.Pods = append(st.Pods, ps)
		st.Traffic.OpenFlows += ps.Traffic.OpenFlows
		if p.runs() {
			w.Replicas++
		}
	}
	return st
}

// runs reports whether a pod's process runs. It may listen before its start has returned.
func (p *pod) runs() bool {
	return (p.returned && p.rt.Started != 0 || p.state == lifecycle.BackendServing) && !p.exited
}

func (p *pod) status() PodStatus {
	return PodStatus{
		ID: p.rt.ID, Addr: p.rt.Addr, Node: p.node, State: p.condition(), Started: p.rt.Started.Wall(),
		Traffic: Traffic{OpenFlows: p.stats.OpenFlows, NewFlows: p.stats.NewFlows, BytesIn: p.stats.BytesIn, BytesOut: p.stats.BytesOut},
	}
}

// podConditions are the states of a pod, as PodStatus and metrics tell them.
var podConditions = []string{podStarting, podServing, podDraining, podStopping, podExited}

const (
	podStarting = "starting"
	podServing  = "serving"
	podDraining = "draining"
	podStopping = "stopping"
	podExited   = "exited"
)

func (p *pod) condition() string {
	switch {
	case p.exited:
		return podExited
	case p.stopping:
		return podStopping
	case p.state == lifecycle.BackendDraining:
		return podDraining
	case p.state == lifecycle.BackendServing:
		return podServing
	}
	return podStarting
}

// Resolve finds the service that a user means: "namespace/name", or a name alone if it is that of one
// service only, or of one in the namespace default.
func (c *Controller) Resolve(name string) (runtime.Key, error) {
	var found []runtime.Key
	c.call(func() {
		for k := range c.services {
			if string(k) == name || !strings.Contains(name, "/") && strings.HasSuffix(string(k), "/"+name) {
				found = append(found, k)
			}
		}
	})
	slices.Sort(found)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return "", fmt.Errorf("service %q: %w", name, runtime.ErrNotFound)
	case slices.Contains(found, runtime.Key("default/"+name)):
		return runtime.Key("default/" + name), nil
	}
	return "", fmt.Errorf("service %q: there are several: %v: name one with its namespace", name, found)
}

// Wakes returns the waterfalls of the last wakes that are kept (lifecycle.RingSize over all services) of a
// service, or of all if key is empty; oldest first.
func (c *Controller) Wakes(key runtime.Key) []lifecycle.Waterfall { return c.ring.Wakes(string(key)) }

// Logs copies what the service's pods wrote to w, as runtime.Runtime has it.
func (c *Controller) Logs(ctx context.Context, key runtime.Key, w io.Writer, tail int, follow bool) error {
	return c.cfg.Runtime.Logs(ctx, key, w, tail, follow)
}

// Sleep puts a service to sleep and waits until nothing is left of the pods that it had. A client that
// comes meanwhile wakes it again right after.
func (c *Controller) Sleep(ctx context.Context, key runtime.Key) error {
	var w *sleeper
	var err error
	if !c.call(func() {
		s := c.services[key]
		if s == nil {
			err = fmt.Errorf("service %s: %w", key, runtime.ErrNotFound)
			return
		}
		refs := map[lifecycle.Ref]bool{}
		for _, p := range s.pods {
			refs[p.ref] = true
		}
		if len(refs) > 0 {
			w = &sleeper{refs: refs, done: make(chan struct{})}
			s.sleepers = append(s.sleepers, w)
		}
		c.step(s, lifecycle.SleepAsked{})
	}) {
		return ErrClosed
	}
	if err != nil || w == nil {
		return err
	}
	select {
	case <-w.done:
		return nil
	case <-c.done:
		return ErrClosed
	case <-ctx.Done():
		c.call(func() {
			if s := c.services[key]; s != nil {
				s.sleepers = slices.DeleteFunc(s.sleepers, func(o *sleeper) bool { return o == w })
			}
		})
		return fmt.Errorf("service %s: not asleep yet: %w", key, ctx.Err())
	}
}
