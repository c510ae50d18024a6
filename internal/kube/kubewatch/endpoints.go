// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
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

// Endpoints follows the addresses behind a Service, ready or not.
type Endpoints struct {
	Slices v1.EndpointSliceInterface // client for its namespace
	Name   string                    // of the Service
	Log    *slog.Logger
}

// Follow calls changed with the IPv4 addresses in ascending order, once they are known and whenever they have changed,
// until ctx ends. While the API server does not answer, it calls nothing.
func (e *Endpoints) Follow(ctx context.Context, changed func(addrs []netip.Addr)) {
	var last []netip.Addr
	known := false
	report := func(all map[string][]netip.Addr) {
		addrs := unite(all)
		if !known || !slices.Equal(addrs, last) {
			known, last = true, addrs
			changed(addrs)
		}
	}
	repeat(ctx, e.Log, e.Name, func() error { return e.followOnce(ctx, report) })
}

// followOnce lists the slices and watches them until the watch ends.
func (e *Endpoints) followOnce(ctx context.Context, report func(map[string][]netip.Addr)) error {
	opts := metav1.ListOptions{LabelSelector: labels.Set{discoveryv1.LabelServiceName: e.Name}.String()}
	request, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := e.Slices.List(request, opts)
	if err != nil {
		return err
	}
	all := map[string][]netip.Addr{}
	for i := range list.Items {
		all[list.Items[i].Name] = addressesOf(&list.Items[i])
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
				all[s.Name] = addressesOf(s)
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

// unite returns the addresses of all slices, each once, in ascending order.
func unite(all map[string][]netip.Addr) []netip.Addr {
	out := slices.Concat(slices.Collect(maps.Values(all))...)
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}
