// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// Ready returns why the controller cannot wake services yet; nil if it can.
func (c *Controller) Ready() error {
	synced, daemons := false, 0
	if !c.loop.call(func() { synced, daemons = c.engine.synced, len(c.engine.daemons.peers) }) {
		return ErrClosed
	}
	switch {
	case !synced:
		return errors.New("the services are not known yet")
	case daemons == 0:
		return errors.New("no daemon is connected")
	}
	return nil
}

// DaemonAddrs returns, by the names of nodes with a session, where the datagrams of their daemons come from.
func (c *Controller) DaemonAddrs() map[string]netip.Addr {
	addrs := map[string]netip.Addr{}
	for _, p := range c.server.Peers() {
		addrs[p.Node] = p.Addr.Addr().Unmap()
	}
	return addrs
}

// Subscribe returns the events from now on, until ctx ends. A subscriber that does not read misses events (Event.Lost),
// but does not block anything.
func (c *Controller) Subscribe(ctx context.Context) <-chan status.Event {
	return c.events.subscribe(ctx)
}

// Status returns all services, sorted by namespace and name; none after the controller's end.
func (c *Controller) Status() []status.Status {
	var out []status.Status
	c.loop.call(func() {
		out = make([]status.Status, 0, len(c.engine.table.services))
		for _, s := range c.engine.table.services {
			st := s.status()
			st.Reservations = c.engine.relief.reservations(s)
			out = append(out, st)
		}
	})
	slices.SortFunc(out, func(a, b status.Status) int {
		return strings.Compare(a.Service.Namespace+"/"+a.Service.Name, b.Service.Namespace+"/"+b.Service.Name)
	})
	return out
}

// Pressure returns what is scarce in the gates of nodes as a whole, sorted by its message.
func (c *Controller) Pressure() []status.Pressure {
	var out []status.Pressure
	c.loop.call(func() { out = slices.Collect(maps.Values(c.engine.pressures.nodes.all)) })
	slices.SortFunc(out, func(a, b status.Pressure) int { return strings.Compare(a.Message, b.Message) })
	return out
}

// Gates returns the state of the gates of all nodes with a daemon, by name, at most a few seconds old. It asks the
// daemons, and waits two seconds for them at most.
func (c *Controller) Gates(ctx context.Context) ([]status.Gate, error) {
	i, err := c.inspect(ctx, (*inspector).askGates)
	if err != nil {
		return nil, err
	}
	return i.nodes, nil
}

// Connections returns who is connected to pods, likewise.
func (c *Controller) Connections(ctx context.Context) (status.Connections, error) {
	i, err := c.inspect(ctx, (*inspector).askConnected)
	if err != nil {
		return status.Connections{}, err
	}
	return i.result, nil
}

// inspect waits for an inspection.
func (c *Controller) inspect(ctx context.Context, ask func(*inspector) *inspection) (i *inspection, err error) {
	if !c.loop.call(func() { i = ask(c.receiver.inspector) }) {
		return nil, ErrClosed
	}
	select {
	case <-i.done:
		return i, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.loop.done:
		return nil, ErrClosed
	}
}

// StatusOf returns the status of one service, and whether it exists.
func (c *Controller) StatusOf(key v1alpha1.Key) (st status.Status, ok bool) {
	c.loop.call(func() {
		if s := c.engine.table.services[key]; s != nil {
			st, ok = s.status(), true
			st.NoDaemon, st.Starting = c.engine.daemons.alone, !c.engine.daemons.listed()
			st.Unreported, st.Removing = c.engine.unreported(s), s.machine.Deleted()
			st.Reservations = c.engine.relief.reservations(s)
		}
	})
	return st, ok
}

// Changed waits until the Status of services has changed since the last call, and returns their keys, each once;
// deleted services are among them. A newer time of the last packet counts as a change every latestPause only. There is
// one set of changes: only one goroutine should call Changed.
func (c *Controller) Changed(ctx context.Context) ([]v1alpha1.Key, error) {
	return c.engine.changed.take(ctx, c.loop.done)
}

// Observe returns the load of a service, and whether it exists.
func (c *Controller) Observe(key v1alpha1.Key) (o Observation, ok bool) {
	c.loop.call(func() {
		if s := c.engine.table.services[key]; s != nil {
			o, ok = s.observe(monotime.Now()), true
			for _, p := range s.pods {
				if p.id != 0 {
					o.Pods = append(o.Pods, p.status())
				}
			}
		}
	})
	return o, ok
}

// Resolve finds the service that a user means: "namespace/name", or a name alone if only one service has it, or one in
// the namespace default.
func (c *Controller) Resolve(name string) (v1alpha1.Key, error) {
	var found []v1alpha1.Key
	c.loop.call(func() {
		for k := range c.engine.table.services {
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
	case slices.Contains(found, v1alpha1.Key("default/"+name)):
		return v1alpha1.Key("default/" + name), nil
	}
	return "", fmt.Errorf("service %q: there are several: %v: name one with its namespace", name, found)
}

// Wakes returns the kept waterfalls (lifecycle.RingSize over all services) of a service, or of all if key is empty,
// oldest first. The last wake of a service under an earlier controller (Recall) is among them until it has another one.
func (c *Controller) Wakes(key v1alpha1.Key) []lifecycle.Waterfall {
	var out []lifecycle.Waterfall
	c.loop.call(func() {
		for _, s := range c.engine.table.services {
			if s.lastWake != nil && s.lastWake.Number == 0 && (key == "" || s.key == key) {
				out = append(out, *s.lastWake)
			}
		}
	})
	out = append(out, c.engine.wakes.ring.Wakes(string(key))...)
	slices.SortStableFunc(out, func(a, b lifecycle.Waterfall) int { return a.Start.Compare(b.Start) })
	return out[max(len(out)-lifecycle.RingSize, 0):]
}

// Logs copies the output of a container of the service's pods to w (runtime.Runtime).
func (c *Controller) Logs(ctx context.Context, key v1alpha1.Key, w io.Writer, options runtime.LogOptions) error {
	var spec *v1alpha1.WangellService
	if !c.loop.call(func() {
		if s := c.engine.table.services[key]; s != nil {
			spec = s.spec
		}
	}) {
		return ErrClosed
	}
	if spec != nil {
		if err := spec.NeedContainer(options.Container); err != nil {
			return err
		}
	}
	return c.runtime.Logs(ctx, key, w, options)
}

// latestPause is how much newer the time of a service's last packet must be to count as a change on its own.
const latestPause = 10 * time.Second

// glance returns the part of the service's Status that is compared.
func (s *service) glance() glance {
	g := glance{
		state: s.machine.State(), message: s.message(), image: cmp.Or(s.imageErr, s.unready()), history: s.foresight.saved,
		pressure: s.pressure(),
		images:   s.images.Status, lazy: s.images.Lazy, digests: s.images.Digests.Changes,
		serving: s.machine.Serving(), desired: s.machine.Desired(), replicas: s.replicas(),
		lastPacket: s.reported.lastPacket,
	}
	if w := s.lastWake; w != nil {
		g.wake, g.result, g.phases = w.Number, w.Result, len(w.Phases)
	}
	if s.lastPacket.Sub(s.reported.lastPacket) >= latestPause || s.reported.lastPacket == 0 {
		g.lastPacket = s.lastPacket
	}
	return g
}

// changedSet collects the services whose Status has changed, each once.
type changedSet struct {
	mu   sync.Mutex
	keys map[v1alpha1.Key]bool
	more chan struct{} // has an element while there are keys
}

func newChangedSet() *changedSet {
	return &changedSet{keys: map[v1alpha1.Key]bool{}, more: make(chan struct{}, 1)}
}

// check adds a service if its Status has changed.
func (c *changedSet) check(s *service) {
	if g := s.glance(); g != s.reported {
		s.reported = g
		c.add(s.key)
	}
}

func (c *changedSet) add(k v1alpha1.Key) {
	c.mu.Lock()
	c.keys[k] = true
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *changedSet) addAll(services map[v1alpha1.Key]*service) {
	for k := range services {
		c.add(k)
	}
}

// take waits until there are keys, and removes and returns them. It returns ErrClosed once done is closed.
func (c *changedSet) take(ctx context.Context, done <-chan struct{}) ([]v1alpha1.Key, error) {
	for {
		select {
		case <-c.more:
			c.mu.Lock()
			keys := slices.SortedFunc(maps.Keys(c.keys), compareKeys)
			clear(c.keys)
			c.mu.Unlock()
			if len(keys) > 0 {
				return keys, nil
			}
		case <-done:
			return nil, ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
