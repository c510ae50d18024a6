// SPDX-License-Identifier: Apache-2.0

// Package cluster has what all experiments on Kubernetes share: a cluster started by test/cluster with a namespace
// for the experiment, its nodes' container runtimes, its clients, and services under load. It does not depend on what
// Wangell is compared with.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/clusterfile"
	"wangell.loutres.me/test/testutil/netlab"
)

// Cluster is a running cluster with a namespace for the experiment.
type Cluster struct {
	// File describes the cluster.
	File    *clusterfile.Cluster
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	// Client is a host on the nodes' LAN that is not a node.
	Client *netlab.Namespace
	// Nodes are the nodes' container runtimes.
	Nodes *Runtimes
	// Namespace is the experiment's namespace.
	Namespace string

	kinds  []schema.GroupVersionResource // deleted before pods
	killed map[types.UID]time.Time       // when the containers of terminating pods were last killed
	undo   []func() error
}

// OnClose registers a function that Close calls. Functions are called in reverse order.
func (c *Cluster) OnClose(f func() error) { c.undo = append(c.undo, f) }

// Close removes everything that the experiment made, and waits until it is gone.
func (c *Cluster) Close() error { return c.runUndo() }

func (c *Cluster) runUndo() error {
	var errs []error
	for i := len(c.undo) - 1; i >= 0; i-- {
		errs = append(errs, c.undo[i]())
	}
	c.undo = nil
	return errors.Join(errs...)
}

// PushHello pushes the hello image; see Push.
func (c *Cluster) PushHello(ctx context.Context) (string, error) {
	img, err := image.Hello(ctx)
	if err != nil {
		return "", err
	}
	return c.Push(ctx, img, "hello")
}

// Push puts an image into the cluster's registry and on every node. It returns the reference by digest, which needs no
// look-up of a tag.
func (c *Cluster) Push(ctx context.Context, img v1.Image, repository string) (string, error) {
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("push image %s: %w", repository, err)
	}
	repository = "wangell-lab/" + repository
	to, err := name.NewTag(c.File.Registry.PushAddress+"/"+repository+":v1", name.Insecure)
	if err != nil {
		return "", fmt.Errorf("push image %s: %w", repository, err)
	}
	if err := remote.Write(to, img, remote.WithContext(ctx)); err != nil {
		return "", fmt.Errorf("push image %s: %w", to, err)
	}
	reference := c.File.Registry.Address + "/" + repository + "@" + digest.String()
	return reference, c.Nodes.Pull(ctx, reference)
}

// Request does one request from the cluster's client.
func (c *Cluster) Request(ctx context.Context, address, host string) (probe.Timing, error) {
	return probe.Request(ctx, c.Client.Dialer().DialContext, address, host)
}

// Versions returns the versions of the machine, of this program and of the cluster.
func (c *Cluster) Versions() (map[string]string, error) {
	v := report.MachineVersions()
	maps.Copy(v, c.File.Versions)
	server, err := c.Kube.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("the cluster's version: %w", err)
	}
	v["kubernetes"] = server.GitVersion
	return v, nil
}
