// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/typed/discovery/v1"
)

// settleTime is how long Endpoints waits for further changes before it reports one: the addresses of a DaemonSet change
// one after the other.
const settleTime = time.Second

// Endpoints follows what is behind a Service.
type Endpoints struct {
	Slices v1.EndpointSliceInterface // client for its namespace
	Name   string                    // of the Service
	Log    *slog.Logger
}

// Follow calls changed with the IPv4 addresses, ready or not, in ascending order, once they are known and whenever they
// have changed, until ctx ends. While the API server does not answer, it calls nothing.
func (e *Endpoints) Follow(ctx context.Context, changed func(addrs []netip.Addr)) {
	followSlices(ctx, e, addressesOf, netip.Addr.Compare, changed)
}

// FollowNodes is like Follow, and calls changed with the names of the nodes whose endpoints serve. One that ends serves
// until it is gone.
func (e *Endpoints) FollowNodes(ctx context.Context, changed func(nodes []string)) {
	followSlices(ctx, e, nodesOf, strings.Compare, changed)
}

// followSlices reports what one function finds in each slice, in the order of another.
func followSlices[T comparable](ctx context.Context, e *Endpoints, find func(*discoveryv1.EndpointSlice) []T,
	compare func(T, T) int, changed func([]T)) {
	var last []T
	known := false
	report := func(all map[string][]T) {
		found := unite(all, compare)
		if !known || !slices.Equal(found, last) {
			known, last = true, found
			changed(found)
		}
	}
	repeat(ctx, e.Log, e.Name, func() error { return followSlicesOnce(ctx, e, find, report) })
}

// followSlicesOnce lists the slices and watches them until the watch ends.
func followSlicesOnce[T comparable](ctx context.Context, e *Endpoints, find func(*discoveryv1.EndpointSlice) []T,
	report func(map[string][]T)) error {
	opts := metav1.ListOptions{LabelSelector: labels.Set{discoveryv1.LabelServiceName: e.Name}.String()}
	request, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := e.Slices.List(request, opts)
	if err != nil {
		return err
	}
	all := map[string][]T{}
	for i := range list.Items {
		all[list.Items[i].Name] = find(&list.Items[i])
	}
	report(all)
	seconds := int64(watchTimeout.Seconds())
	opts.ResourceVersion, opts.TimeoutSeconds = list.ResourceVersion, &seconds
	w, err := e.Slices.Watch(ctx, opts)
	if err != nil {
		return err
	}
	defer w.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-settled:
			settled = nil
			report(all)
		case event, open := <-w.ResultChan():
			if !open {
				report(all)
				return nil
			}
			s, ok := event.Object.(*discoveryv1.EndpointSlice)
			switch {
			case !ok:
				return nil // an error, or a bookmark: list them anew
			case event.Type == watch.Deleted:
				delete(all, s.Name)
			default:
				all[s.Name] = find(s)
			}
			if settled == nil {
				settled = time.After(settleTime)
			}
		}
	}
}

// addressesOf returns the IPv4 addresses of a slice.
func addressesOf(s *discoveryv1.EndpointSlice) (out []netip.Addr) {
	for _, p := range s.Endpoints {
		for _, text := range p.Addresses {
			if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
				out = append(out, a)
			}
		}
	}
	return out
}

// nodesOf returns the nodes of the endpoints of a slice that serve. Whether they are ready says less: a Service may
// publish all of them as ready.
func nodesOf(s *discoveryv1.EndpointSlice) (out []string) {
	for _, p := range s.Endpoints {
		if serves := p.Conditions.Serving; p.NodeName != nil && (serves == nil || *serves) {
			out = append(out, *p.NodeName)
		}
	}
	return out
}

// unite returns what all slices have, each once, in ascending order.
func unite[T comparable](all map[string][]T, compare func(T, T) int) []T {
	out := slices.Concat(slices.Collect(maps.Values(all))...)
	slices.SortFunc(out, compare)
	return slices.Compact(out)
}
