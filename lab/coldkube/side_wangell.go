// SPDX-License-Identifier: Apache-2.0

package coldkube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/probe"
)

// wangellName is the name of the WangellService and of its Deployment.
const wangellName = "hello-wangell"

// wangellSide is a WangellService.
type wangellSide struct {
	cluster *cluster.Cluster
	image   string
	address string
	woken   metav1.Time // start of the last recorded wake
}

func (s *wangellSide) name() string { return SideWangell }

func (s *wangellSide) prepare(ctx context.Context) error {
	err := s.cluster.Create(ctx, v1alpha1.Resource, v1alpha1.Kind, wangellName, map[string]any{
		"image": s.image, "port": int64(80), "targetPort": int64(cluster.HelloPort), "idleTimeout": int64(3600),
	})
	if err != nil {
		return fmt.Errorf("%w: is Wangell's chart installed?", err)
	}
	return cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		service, err := s.get(ctx)
		if err != nil {
			return err
		}
		addr, err := netip.ParseAddr(service.Status.LoadBalancerIP)
		if err != nil {
			return errors.New("the WangellService has no address")
		}
		s.address = netip.AddrPortFrom(addr, 80).String()
		if !meta.IsStatusConditionTrue(service.Status.Conditions, v1alpha1.ConditionReady) {
			return fmt.Errorf("the WangellService is not Ready: %+v", service.Status.Conditions)
		}
		return nil
	})
}

func (s *wangellSide) get(ctx context.Context) (*v1alpha1.WangellService, error) {
	resource := s.cluster.Dynamic.Resource(v1alpha1.Resource).Namespace(s.cluster.Namespace)
	object, err := resource.Get(ctx, wangellName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get the WangellService: %w", err)
	}
	var service v1alpha1.WangellService
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &service); err != nil {
		return nil, fmt.Errorf("decode the WangellService: %w", err)
	}
	return &service, nil
}

func (s *wangellSide) cold(ctx context.Context) (Sample, error) {
	at := time.Now()
	t, err := s.warm(ctx)
	if ctx.Err() != nil {
		return Sample{}, ctx.Err()
	}
	sample := newSample(at, t, err)
	if err != nil {
		return sample, nil
	}
	// The status is written after the client got its answer.
	return sample, cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		service, err := s.get(ctx)
		if err != nil {
			return err
		}
		last := service.Status.LastWake
		if last == nil || last.Start.Equal(&s.woken) || last.Result == string(lifecycle.ResultRunning) {
			return errors.New("the WangellService's status has no new wake: the request may not have been cold")
		}
		s.woken, sample.Phases = last.Start, map[string]float64{}
		for _, p := range last.Phases {
			sample.Phases[p.Name] = float64(p.Ms)
		}
		return nil
	})
}

func (s *wangellSide) warm(ctx context.Context) (probe.Timing, error) {
	return s.cluster.Request(ctx, s.address, s.address)
}

// rest is `kubectl scale --replicas=0`, once the pod has been handed over to the Deployment.
func (s *wangellSide) rest(ctx context.Context) error {
	err := cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		d, err := s.cluster.Kube.AppsV1().Deployments(s.cluster.Namespace).Get(ctx, wangellName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("the Deployment of the WangellService: %w", err)
		}
		if d.Spec.Paused || d.Status.ReadyReplicas != 1 {
			return fmt.Errorf("its Deployment has %d Ready pods, paused: %t; want 1, false",
				d.Status.ReadyReplicas, d.Spec.Paused)
		}
		return nil
	})
	if err != nil {
		return err
	}
	resource := s.cluster.Dynamic.Resource(v1alpha1.Resource).Namespace(s.cluster.Namespace)
	_, err = resource.Patch(ctx, wangellName, types.MergePatchType, []byte(`{"spec":{"replicas":0}}`),
		metav1.PatchOptions{}, "scale")
	if err != nil {
		return fmt.Errorf("scale the WangellService to zero: %w", err)
	}
	return cluster.Until(ctx, cluster.ZeroTimeout, func() error {
		service, err := s.get(ctx)
		if err != nil {
			return err
		}
		if status := service.Status; status.State != "Cold" || status.Replicas != 0 {
			return fmt.Errorf("the WangellService is %s with %d replicas, want Cold with 0", status.State, status.Replicas)
		}
		return gone(ctx, s.cluster, SideWangell)
	})
}
