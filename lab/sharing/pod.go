// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/podnet"
)

const (
	// criNamespace is where the CRI plugin keeps its images.
	criNamespace = "k8s.io"
	// endIn bounds the end of a container.
	endIn = 30 * time.Second
)

// podAddresses are the addresses of the pods of a node; all pods are on one node.
var podAddresses = netip.MustParsePrefix("10.46.128.0/20")

// pod is a container with a network namespace of its own.
type pod struct {
	runtime.Pod

	node      *Node
	client    *client.Client
	networks  *podnet.Pool
	network   string
	container client.Container // nil: none
	task      client.Task      // nil: none
}

// newPod makes the network of a pod.
func (n *Node) newPod(about runtime.Pod) (_ *pod, err error) {
	p := &pod{Pod: about, node: n}
	if p.client, err = client.New(n.containerd.Socket(), client.WithDefaultNamespace(criNamespace)); err != nil {
		return nil, err
	}
	err = n.host.Do(func() (err error) {
		// Replies leave with the service address as their source. A device gets its setting from this one.
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/default/rp_filter", []byte("0"), 0); err != nil {
			return err
		}
		p.networks, err = podnet.NewPool(podnet.Config{
			Dir: filepath.Join(n.dir, "net"), Addresses: podAddresses, DevicePrefix: "pod",
		})
		return err
	})
	if err != nil {
		return nil, errors.Join(err, p.client.Close())
	}
	made, err := p.networks.Take()
	if err != nil {
		return nil, errors.Join(err, p.close(context.Background()))
	}
	p.network, p.Addr, p.Netns = made.Name, made.Addr, made.Netns
	return p, nil
}

// create creates the process of the pod from an image on its node.
func (p *pod) create(ctx context.Context, ref string) error {
	img, err := p.client.GetImage(ctx, ref)
	if err != nil {
		return err
	}
	p.container, err = p.client.NewContainer(ctx, p.ID, client.WithImage(img), client.WithNewSnapshot(p.ID, img),
		client.WithNewSpec(oci.WithImageConfig(img), oci.WithCgroup("/wangell-lab-"+p.ID),
			oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: p.Netns})))
	if err != nil {
		return err
	}
	p.task, err = p.container.NewTask(ctx, cio.LogFile(filepath.Join(p.node.dir, p.ID+".log")))
	return err
}

// close ends the process and removes everything of the pod.
func (p *pod) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endIn)
	defer cancel()
	var errs []error
	if p.task != nil {
		errs = append(errs, p.end(ctx))
	}
	if p.container != nil {
		errs = append(errs, p.container.Delete(ctx, client.WithSnapshotCleanup))
	}
	if p.network != "" {
		errs = append(errs, p.networks.Release(p.network))
	}
	if err := errors.Join(append(errs, p.networks.Close(), p.client.Close())...); err != nil {
		return fmt.Errorf("remove pod %s of %s: %w", p.ID, p.node.Name, err)
	}
	return nil
}

// end kills the process and returns once it has ended.
func (p *pod) end(ctx context.Context) error {
	ended, err := p.task.Wait(ctx)
	if err != nil {
		return err
	}
	if err := p.task.Kill(ctx, syscall.SIGKILL); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	<-ended // also when ctx ends
	_, err = p.task.Delete(ctx)
	return err
}
