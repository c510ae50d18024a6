// SPDX-License-Identifier: Apache-2.0

// Package proxy is kube-proxy as the other side of a comparison: its modes, and services that it balances.
package proxy

import (
	"context"
	"fmt"
	"image/color"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/lab/cluster"
	"wangell.loutres.me/lab/report"
)

// Modes: what balances connections over pods.
const (
	ModeIptables = "iptables" // kube-proxy
	ModeNftables = "nftables" // kube-proxy
	ModeWangell  = "wangell"
	// ModeRequest is Wangell with balancing.level: Request.
	ModeRequest = "wangell_request"
	// ModeKnative is Knative behind Kourier, whose Envoy chooses a pod for each request.
	ModeKnative = "knative"
	// ModeDirect is the limit: clients connect to the pods themselves.
	ModeDirect = "direct"
)

// ModeColor returns the colour of a mode in plots.
func ModeColor(mode string) color.RGBA {
	switch mode {
	case ModeIptables:
		return report.Orange
	case ModeNftables:
		return report.Sky
	case ModeWangell:
		return report.Blue
	case ModeRequest:
		return report.Green
	case ModeKnative:
		return report.Purple
	}
	return report.Grey
}

// InTurn returns the modes in the order of a repetition: forwards and backwards in turn, so that each mode follows each
// other one, and kube-proxy changes its mode only once per repetition.
func InTurn(modes []string, repetition int) []string {
	order := slices.Clone(modes)
	if repetition%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// Cluster is a cluster whose kube-proxy is measured.
type Cluster struct {
	*cluster.Cluster
	mode     string // of kube-proxy at present
	services int    // made by Target so far
}

// Open opens a cluster; see cluster.Open. Close restores the mode of kube-proxy.
func Open(ctx context.Context, file string, kinds ...schema.GroupVersionResource) (*Cluster, error) {
	base, err := cluster.Open(ctx, file, kinds...)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Cluster: base, mode: base.File.ProxyMode}
	c.OnClose(func() error { return c.SetMode(context.Background(), c.File.ProxyMode) })
	return c, nil
}

// restartTimeout is how long the restart of all kube-proxies may take.
const restartTimeout = 2 * time.Minute

// SetMode restarts every kube-proxy in a mode and flushes the rules of the other mode. It does nothing if the mode is
// not one of kube-proxy or is set already.
func (c *Cluster) SetMode(ctx context.Context, mode string) error {
	if mode == c.mode || mode != ModeIptables && mode != ModeNftables {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.File.Dir, "cluster"), "restart-proxy", "--name", c.File.Name,
		"--dir", c.File.Dir, "--proxy-mode", mode)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("restart kube-proxy in mode %s: %w: %s", mode, err, strings.TrimSpace(string(out)))
	}
	c.mode = mode
	return nil
}

var deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}

// Target makes a Deployment and a Service of type LoadBalancer for kube-proxy. The cluster has no load balancer, so
// this function assigns the Service's address, and gives the client a route to it through a node.
func (c *Cluster) Target(ctx context.Context, name string, server cluster.Server) (*cluster.Target, error) {
	labels := map[string]any{"app": name, "load": "server"}
	err := c.Create(ctx, deployments, "Deployment", name, map[string]any{
		"replicas": int64(1), "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": server.PodSpec()},
	})
	if err != nil {
		return nil, err
	}
	// The Deployment must go before Close deletes pods: it would create them again.
	c.OnClose(func() error {
		return c.Dynamic.Resource(deployments).Namespace(c.Namespace).Delete(context.Background(), name,
			metav1.DeleteOptions{})
	})
	off := false
	port := corev1.ServicePort{Port: 80, TargetPort: intstr.FromInt32(cluster.HelloPort)}
	services := c.Kube.CoreV1().Services(c.Namespace)
	service, err := services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: &off,
			Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{port}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create Service %s: %w", name, err)
	}
	c.services++
	outside, err := c.LANAddress(c.services)
	if err != nil {
		return nil, err
	}
	patch := fmt.Appendf(nil, `{"status":{"loadBalancer":{"ingress":[{"ip":%q,"ipMode":"VIP"}]}}}`, outside)
	_, err = services.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("assign an address to Service %s: %w", name, err)
	}
	if err := c.RouteClient(outside); err != nil {
		return nil, err
	}
	return &cluster.Target{Cluster: c.Cluster, Resource: deployments, Name: name, Selector: "app=" + name,
		Inside: service.Spec.ClusterIP + ":80", Outside: outside.String() + ":80"}, nil
}
