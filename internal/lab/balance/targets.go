// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/lab/cluster"
	"wangell.loutres.me/internal/lab/knative"
	"wangell.loutres.me/internal/lab/proxy"
)

// target is the service of a mode.
type target struct {
	*cluster.Target

	// remove removes its pods.
	remove func(context.Context) error
}

// makeTarget makes the service of a mode, with all its pods. Its name ends with suffix.
func makeTarget(
	ctx context.Context, c *proxy.Cluster, mode, suffix string, server cluster.Server,
) (target, error) {
	if mode == proxy.ModeKnative {
		return knativeTarget(ctx, c.Cluster, "balance-knative"+suffix, server)
	}
	var t *cluster.Target
	err := c.SetMode(ctx, mode)
	switch {
	case err != nil:
	case mode == proxy.ModeWangell:
		t, err = c.WangellTarget(ctx, "balance-wangell"+suffix, server, replicas)
	case mode == proxy.ModeRequest:
		t, err = c.RequestTarget(ctx, "balance-request"+suffix, server, replicas)
	default:
		t, err = c.Target(ctx, "balance-proxy"+suffix, server)
	}
	if err != nil {
		return target{}, err
	}
	remove := func(ctx context.Context) error { return t.ScaleTo(ctx, 0) }
	return target{Target: t, remove: remove}, t.ScaleTo(ctx, replicas)
}

// knativeTarget makes a Knative service with a fixed number of pods. The activator is not in the path of requests.
func knativeTarget(ctx context.Context, c *cluster.Cluster, name string, server cluster.Server) (target, error) {
	s := knative.Service{Cluster: c, Name: name, Image: server.Image, Env: server.Env(), Annotations: map[string]string{
		knative.MinScale: strconv.Itoa(replicas), knative.MaxScale: strconv.Itoa(replicas), knative.BurstCapacity: "0",
	}}
	if err := s.Create(ctx); err != nil {
		return target{}, err
	}
	t := &cluster.Target{Cluster: c, Name: name, Selector: s.Selector(), Inside: s.Address, Host: s.Host}
	return target{Target: t, remove: s.Delete}, cluster.Until(ctx, cluster.ReadyTimeout, func() error {
		pods, err := t.Pods(ctx)
		if err != nil {
			return err
		}
		if ready, others := cluster.CountReady(pods); ready != replicas || others > 0 {
			return fmt.Errorf("service %s of Knative: %d pods are ready, want %d; %d more start or end", name, ready,
				replicas, others)
		}
		return nil
	})
}

// withoutMissing returns the modes without Knative if it is not installed.
func withoutMissing(ctx context.Context, c *cluster.Cluster, modes []string) (kept []string, missing error, err error) {
	for _, mode := range modes {
		if mode == proxy.ModeKnative {
			switch err := knative.Installed(ctx, c); {
			case errors.Is(err, knative.ErrMissing):
				missing = err
				continue
			case err != nil:
				return nil, nil, err
			}
		}
		kept = append(kept, mode)
	}
	return kept, missing, nil
}

// envoys returns the pods with the Envoys of a mode, none if it has none.
func envoys(ctx context.Context, c *cluster.Cluster, mode string) ([]corev1.Pod, error) {
	switch mode {
	case proxy.ModeKnative:
		return knative.Gateways(ctx, c)
	case proxy.ModeRequest:
		pods, err := c.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=wangell,app.kubernetes.io/component=envoy",
		})
		if err != nil {
			return nil, fmt.Errorf("list the pods of Envoy: %w", err)
		}
		return pods.Items, nil
	}
	return nil, nil
}
