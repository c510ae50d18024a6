// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/knative"
	"wangell.loutres.me/lab/proxy"
)

// clusterSite is a cluster with nodes on this machine.
type clusterSite struct {
	*proxy.Cluster

	from  *cluster.Vantage
	image string
	modes []string
}

// openCluster opens the cluster of the parameters, and leaves out the mode Knative if that is not installed.
func openCluster(ctx context.Context, p *Params, out lab.Output) (_ *clusterSite, err error) {
	c, err := proxy.Open(ctx, p.Cluster, knative.Resource)
	if err != nil {
		return nil, err
	}
	s := &clusterSite{Cluster: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	modes, missing, err := withoutMissing(ctx, c.Cluster, p.Modes)
	if err != nil {
		return nil, err
	}
	if missing != nil {
		if p.chosenModes {
			return nil, fmt.Errorf("--modes: %w", missing)
		}
		out.Log("left out: %v", missing)
	}
	p.Modes, s.modes = modes, modes
	if s.image, err = c.PushHello(ctx); err != nil {
		return nil, err
	}
	s.from, err = c.PodClients(ctx, s.image, 1)
	return s, err
}

// describe implements site.
func (s *clusterSite) describe(ctx context.Context, params map[string]any) (map[string]string, error) {
	versions, err := s.Versions()
	if err != nil {
		return nil, err
	}
	params["nodes"], params["CNI"] = len(s.File.Nodes), s.File.CNI
	if slices.Contains(s.modes, proxy.ModeKnative) {
		settings, of, err := knative.Settings(ctx, s.Cluster.Cluster)
		if err != nil {
			return nil, err
		}
		maps.Copy(params, settings)
		maps.Copy(versions, of)
	}
	return versions, nil
}

// clusterTarget is a service on a cluster.
type clusterTarget struct {
	*cluster.Target

	site *clusterSite
	mode string
	end  func(context.Context) error
}

// target implements site.
func (s *clusterSite) target(ctx context.Context, mode string, work time.Duration) (target, error) {
	server, suffix := cluster.Server{Image: s.image, Stop: cluster.StopNow, Work: work}, ""
	if work > 0 {
		suffix = "-work"
	}
	if mode == proxy.ModeKnative {
		return s.knativeTarget(ctx, "balance-knative"+suffix, server)
	}
	var t *cluster.Target
	err := s.SetMode(ctx, mode)
	switch {
	case err != nil:
	case mode == proxy.ModeWangell:
		t, err = s.WangellTarget(ctx, "balance-wangell"+suffix, server, replicas)
	case mode == proxy.ModeRequest:
		t, err = s.RequestTarget(ctx, "balance-request"+suffix, server, replicas)
	default:
		t, err = s.Target(ctx, "balance-proxy"+suffix, server)
	}
	if err != nil {
		return nil, err
	}
	end := func(ctx context.Context) error { return t.ScaleTo(ctx, 0) }
	return &clusterTarget{Target: t, site: s, mode: mode, end: end}, t.ScaleTo(ctx, replicas)
}

// endpoint implements target.
func (t *clusterTarget) endpoint(ctx context.Context) (endpoint, error) {
	if err := t.site.from.UntilServed(ctx, t.Target); err != nil {
		return endpoint{}, err
	}
	pods, err := t.Pods(ctx)
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{
		dial: t.site.from.Hosts[0].Namespace.Dialer().DialContext, address: t.site.from.Address(t.Target), host: t.Host,
	}
	for i := range pods {
		e.pods = append(e.pods, pods[i].Name)
	}
	return e, nil
}

// envoy implements target.
func (t *clusterTarget) envoy(ctx context.Context) (EnvoyUse, error) {
	var use EnvoyUse
	pods, err := envoys(ctx, t.site.Cluster.Cluster, t.mode)
	if err != nil {
		return use, err
	}
	for i := range pods {
		cpu, err := t.site.PodCPU(&pods[i])
		if err != nil {
			return use, err
		}
		memory, err := t.site.PodMemory(&pods[i])
		if err != nil {
			return use, err
		}
		use.CPU += cpu.Seconds()
		use.Memory = max(use.Memory, float64(memory)/(1<<20))
	}
	return use, nil
}

// remove implements target.
func (t *clusterTarget) remove(ctx context.Context) error { return t.end(ctx) }

// knativeTarget makes a Knative service with a fixed number of pods. The activator is not in the path of requests.
func (s *clusterSite) knativeTarget(ctx context.Context, name string, server cluster.Server) (target, error) {
	c := s.Cluster.Cluster
	service := knative.Service{Cluster: c, Name: name, Image: server.Image, Env: server.Env(),
		Annotations: map[string]string{
			knative.MinScale: strconv.Itoa(replicas), knative.MaxScale: strconv.Itoa(replicas), knative.BurstCapacity: "0",
		}}
	if err := service.Create(ctx); err != nil {
		return nil, err
	}
	t := &cluster.Target{
		Cluster: c, Name: name, Selector: service.Selector(), Inside: service.Address, Host: service.Host,
	}
	err := cluster.Until(ctx, cluster.ReadyTimeout, func() error {
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
	return &clusterTarget{Target: t, site: s, mode: proxy.ModeKnative, end: service.Delete}, err
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
