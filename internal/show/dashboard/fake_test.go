// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// fakeSource is a source whose services do what a test wants.
type fakeSource struct {
	mu       sync.Mutex
	services []status.Status
	wakes    []lifecycle.Waterfall
	pressure []status.Pressure
	slept    []v1alpha1.Key
	events   chan status.Event
	step     func(*fakeSource) // before each Status; may be nil

	gates       []status.Gate
	connections status.Connections
}

func (f *fakeSource) Gates(context.Context) ([]status.Gate, error) { return f.gates, nil }

func (f *fakeSource) Connections(context.Context) (status.Connections, error) {
	return f.connections, nil
}

func newFake(services ...status.Status) *fakeSource {
	return &fakeSource{services: services, events: make(chan status.Event)}
}

func (f *fakeSource) Status() []status.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.step != nil {
		f.step(f)
	}
	out := make([]status.Status, len(f.services))
	for i, s := range f.services {
		s.Pods = append([]status.Pod(nil), s.Pods...)
		out[i] = s
	}
	return out
}

func (f *fakeSource) Pressure() []status.Pressure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pressure
}

func (f *fakeSource) Wakes(v1alpha1.Key) []lifecycle.Waterfall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]lifecycle.Waterfall(nil), f.wakes...)
}

func (f *fakeSource) Subscribe(ctx context.Context) <-chan status.Event {
	out := make(chan status.Event)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-f.events:
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (f *fakeSource) Resolve(name string) (v1alpha1.Key, error) {
	for _, s := range f.Status() {
		if s.Service.Namespace+"/"+s.Service.Name == name {
			return v1alpha1.Key(name), nil
		}
	}
	return "", fmt.Errorf("service %q: %w", name, runtime.ErrNotFound)
}

func (f *fakeSource) Sleep(_ context.Context, k v1alpha1.Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slept = append(f.slept, k)
	return nil
}

// cold is a service that sleeps since a time.
func cold(name string, since time.Time) status.Status {
	return status.Status{
		Service: v1alpha1.WangellService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v1alpha1.WangellServiceSpec{
				Image: "registry.example/" + name + ":v1", Port: 80, IdleTimeout: 300},
			Status: v1alpha1.WangellServiceStatus{State: lifecycle.Cold.String(), LoadBalancerIP: "10.46.100.7"},
		},
		Slept: status.Slept{Since: since, RequestCPU: 0.25, RequestMemory: 128 << 20},
	}
}

// warm is a service with pods that serve.
func warm(name string, pods int) status.Status {
	s := cold(name, time.Time{})
	s.Service.Status.State = lifecycle.Warm.String()
	s.Slept.Seconds, s.Slept.CPU, s.Slept.Memory = 5400, 1350, 5400*128<<20
	for i := range pods {
		s.Pods = append(s.Pods, status.Pod{
			ID: fmt.Sprintf("%s-%d", name, i), Addr: netip.AddrFrom4([4]byte{10, 46, 128, byte(i)}),
			Node: fmt.Sprintf("node-%d", i%3), State: lifecycle.PodServing.String(), Started: time.Now().Add(-time.Hour),
		})
	}
	s.Serving, s.Desired = pods, pods
	return s
}

// woken is a wake of a service. Its phases take a multiple of the usual time.
func woken(service string, number uint64, slow float64) lifecycle.Waterfall {
	w := lifecycle.Waterfall{
		Service: service, Number: number, Start: time.Now(), Result: lifecycle.ResultWarm, Parked: 3, Released: 3,
	}
	at := time.Duration(0)
	for i, p := range lifecycle.PhaseNames() {
		if p == lifecycle.PhaseReady {
			continue
		}
		took := []float64{0, 0.1, 0.3, 0.2, 11, 9, 28, 41, 0, 0.2, 0.4, 0.6}[i] * slow
		at += time.Duration(took * float64(time.Millisecond))
		w.Phases = append(w.Phases, lifecycle.Phase{
			Name: p, At: at, Took: time.Duration(took * float64(time.Millisecond)),
		})
	}
	return w
}

// busy makes the pods of every awake service accept connections, unevenly and with a wave.
func busy(f *fakeSource) {
	now := time.Now()
	for i := range f.services {
		s := &f.services[i]
		var open uint32
		s.Traffic.RequestsPerSecond = 0
		for k := range s.Pods {
			p := &s.Pods[k]
			wave := 1 + 0.4*math.Sin(float64(now.UnixMilli())/7000+float64(i)+float64(k))
			n := uint64(wave * float64(40+13*(k%5)))
			if s.Service.Spec.BalancesRequests() {
				p.Traffic.RequestsPerSecond, p.Traffic.OpenRequests = float64(n), uint32(k)
				s.Traffic.RequestsPerSecond += float64(n)
				continue
			}
			p.Traffic.NewFlows += n
			p.Traffic.BytesIn += n * 420
			p.Traffic.BytesOut += n * 3100
			p.Traffic.OpenFlows = uint32(wave * float64(4+k%3))
			s.Traffic.NewFlows += n
			s.Traffic.BytesIn += n * 420
			s.Traffic.BytesOut += n * 3100
			open += p.Traffic.OpenFlows
		}
		s.Traffic.OpenFlows = open
		if len(s.Pods) > 0 {
			s.Service.Status.LatestRequest = &metav1.Time{Time: now}
		}
	}
}
