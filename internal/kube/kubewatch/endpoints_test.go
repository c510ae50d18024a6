// SPDX-License-Identifier: Apache-2.0

package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// slice is an EndpointSlice of the Service "fronts".
func slice(name string, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "wangell", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "fronts"},
	}}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// followAddresses follows the Service until the test ends. The function that it returns waits for the next report.
func followAddresses(t *testing.T, c *fake.Clientset) (want func(string)) {
	e := &Endpoints{Slices: c.DiscoveryV1().EndpointSlices("wangell"), Name: "fronts", Log: slog.New(slog.DiscardHandler)}
	reported := make(chan string, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Follow(ctx, func(addrs []netip.Addr) { reported <- fmt.Sprint(addrs) })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return func(want string) {
		t.Helper()
		select {
		case got := <-reported:
			if got != want {
				t.Fatalf("got %s, want %s", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("%s is not reported", want)
		}
	}
}

func TestAddressesBehindAServiceAreFollowed(t *testing.T) {
	c := fake.NewClientset(slice("a", "192.0.2.2", "192.0.2.1"), slice("b", "192.0.2.2", "fd00::1"))
	events := watch.NewFake()
	c.PrependWatchReactor("endpointslices", func(a ktesting.Action) (bool, watch.Interface, error) {
		want := discoveryv1.LabelServiceName + "=fronts"
		if got := a.(ktesting.WatchAction).GetWatchRestrictions().Labels.String(); got != want {
			t.Errorf("watched %q, want %q", got, want)
		}
		return true, events, nil
	})
	want := followAddresses(t, c)
	want("[192.0.2.1 192.0.2.2]")
	events.Modify(slice("a", "192.0.2.1", "192.0.2.7"))
	events.Delete(slice("b", "192.0.2.2"))
	want("[192.0.2.1 192.0.2.7]")
	events.Modify(slice("a", "192.0.2.7", "192.0.2.1")) // the same
	events.Add(slice("c", "192.0.2.9"))
	want("[192.0.2.1 192.0.2.7 192.0.2.9]")
}

// Nodes have an endpoint while one serves, also one that ends, whatever the Service publishes as ready.
func TestNodesOfAServiceAreFollowed(t *testing.T) {
	yes, no, a, b := true, false, "a", "b"
	s := slice("s", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4")
	s.Endpoints[0].NodeName = &b
	s.Endpoints[1].NodeName, s.Endpoints[1].Conditions.Serving = &a, &yes
	s.Endpoints[1].Conditions.Terminating = &yes
	other := "c"
	s.Endpoints[2].NodeName, s.Endpoints[2].Conditions.Serving = &other, &no
	s.Endpoints[2].Conditions.Ready = &yes
	c := fake.NewClientset(s)
	e := &Endpoints{Slices: c.DiscoveryV1().EndpointSlices("wangell"), Name: "fronts", Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []string
	e.FollowNodes(ctx, func(nodes []string) {
		got = nodes
		cancel()
	})
	if fmt.Sprint(got) != "[a b]" {
		t.Errorf("%q, want a and b", got)
	}
}

// Whatever fails, the slices are listed anew, and what has changed meanwhile is reported.
func TestAddressesAreListedAnewAfterAFailure(t *testing.T) {
	c := fake.NewClientset(slice("a", "192.0.2.1"))
	var lists atomic.Int32
	c.PrependReactor("list", "endpointslices", func(ktesting.Action) (bool, runtime.Object, error) {
		if lists.Add(1) == 1 {
			return true, nil, errors.New("no API server")
		}
		return false, nil, nil
	})
	watches := make(chan *watch.FakeWatcher, 10)
	c.PrependWatchReactor("endpointslices", func(ktesting.Action) (bool, watch.Interface, error) {
		w := watch.NewFake()
		watches <- w
		return true, w, nil
	})
	change := func(to string) {
		t.Helper()
		_, err := c.DiscoveryV1().EndpointSlices("wangell").Update(t.Context(), slice("a", to), metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := followAddresses(t, c)
	want("[192.0.2.1]")
	w := <-watches
	change("192.0.2.2")
	w.Error(&metav1.Status{Reason: metav1.StatusReasonExpired})
	want("[192.0.2.2]")
	w = <-watches
	change("192.0.2.3")
	w.Stop()
	want("[192.0.2.3]")
	// An event that has not been reported yet is not lost with its watch.
	w = <-watches
	w.Modify(slice("a", "192.0.2.4"))
	w.Stop()
	want("[192.0.2.4]")
}
