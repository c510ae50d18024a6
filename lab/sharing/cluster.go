// SPDX-License-Identifier: Apache-2.0

// Package sharing runs nodes that pull the images of a service, and share them or not. Each node has a containerd and
// a daemon (wangell daemon) in a network namespace; the controller is in another one, connected by the wire.
package sharing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/wire"
	"wangell.loutres.me/test/testutil/netlab"
)

const (
	wirePort = 7946
	// settle is how long the controller waits for further nodes; in a cluster, nodes are connected before it has work.
	settle = 50 * time.Millisecond
)

// Config configures a Cluster.
type Config struct {
	// Wangell and Containerd are the programs.
	Wangell, Containerd string
	// Dir is a folder on the disk to use, for one cluster at a time. Close removes everything made in it.
	Dir string
	// Path is where containerd looks for programs.
	Path string
	// Controller is where the controller runs, and Nodes where the nodes do.
	Controller *netlab.Namespace
	Nodes      []*netlab.Namespace
	// Registry is the host and port of a registry that is accessed over plain HTTP.
	Registry string
	// Peers has the nodes share images.
	Peers bool
}

// Service is a service that a cluster has.
type Service struct {
	// Name is its name in the namespace default.
	Name string
	// Image is pulled by Nodes nodes when the service is created, or by all of them if Nodes is 0.
	Image string
	Nodes int
	// OnWake leaves the pull to the first wake instead.
	OnWake bool
	// Port is where its program listens.
	Port int32
	// WakeTimeout bounds a wake; 0: the default.
	WakeTimeout time.Duration
}

// servicePort is the port of every service address.
const servicePort = 80

// Cluster is a controller with nodes.
type Cluster struct {
	Nodes []*Node

	cfg    Config
	key    wire.Key
	dir    string
	leader *controller.Controller
	wanted []controller.Service
	pods   *pods
}

func (c *Cluster) keyFile() string { return filepath.Join(c.dir, "wire.key") }

// address is where the controller is reached.
func (c *Cluster) address() netip.AddrPort {
	return netip.AddrPortFrom(c.cfg.Controller.Addr, wirePort)
}

// lead starts a controller with the services and without knowledge of the nodes.
func (c *Cluster) lead(ctx context.Context) error {
	var conn *net.UDPConn
	err := c.cfg.Controller.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(c.address()))
		return err
	})
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	leader, err := controller.New(controller.Config{Runtime: c.pods, Conn: conn, Key: c.key, ImageSettle: settle})
	if err != nil {
		return errors.Join(fmt.Errorf("controller: %w", err), conn.Close())
	}
	c.leader = leader
	if err := leader.Update(c.wanted, nil); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	return leader.Synced(ctx)
}

// Want makes the first nodes pull an image, or all of them if their number is 0. It returns before they have it.
func (c *Cluster) Want(image string, nodes int) error {
	return c.SetServices(Service{Name: "model", Image: image, Nodes: nodes, Port: 8080})
}

// SetServices replaces the services. It returns before nodes have their images.
func (c *Cluster) SetServices(services ...Service) error {
	c.wanted = nil
	for i, s := range services {
		pull := &v1alpha1.ImagePull{When: v1alpha1.PullOnWake}
		if !s.OnWake {
			number := intstr.FromInt(s.Nodes)
			if s.Nodes == 0 {
				number = intstr.FromString("All")
			}
			pull = &v1alpha1.ImagePull{Nodes: &number}
		}
		spec := &v1alpha1.WangellService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: s.Name},
			Spec: v1alpha1.WangellServiceSpec{
				Image: s.Image, Port: servicePort, TargetPort: s.Port, IdleTimeout: 3600, ImagePull: pull,
				WakeTimeout: int64(s.WakeTimeout.Seconds()),
			},
		}
		v1alpha1.Default(spec)
		c.wanted = append(c.wanted, controller.Service{Spec: spec, Addr: serviceAddr(i), Announce: true})
	}
	if err := c.leader.Update(c.wanted, nil); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	return nil
}

// serviceAddr returns the address of a service by its place in SetServices.
func serviceAddr(i int) netip.Addr {
	addr := netlab.DefaultServices.Addr()
	for range i + 1 {
		addr = addr.Next()
	}
	return addr
}

// Address returns the service address of a service, by its place in SetServices.
func (c *Cluster) Address(i int) netip.AddrPort {
	return netip.AddrPortFrom(serviceAddr(i), servicePort)
}

// RunPodsOn chooses the node of all pods. Before, none can be started.
func (c *Cluster) RunPodsOn(n *Node) { c.pods.runOn(n) }

// ChangeLeader replaces the controller by another one, whose index of blobs is empty.
func (c *Cluster) ChangeLeader(ctx context.Context) error {
	c.leader.Detach()
	c.leader = nil
	return c.lead(ctx)
}

// Close ends the nodes and the controller, and removes their files.
func (c *Cluster) Close() error {
	stopped := c.pods.Close()
	errs := make([]error, len(c.Nodes))
	var closing sync.WaitGroup
	for i, n := range c.Nodes {
		if n != nil {
			closing.Go(func() { errs[i] = n.close() })
		}
	}
	closing.Wait()
	if c.leader != nil {
		c.leader.Detach()
	}
	return errors.Join(stopped, errors.Join(errs...), os.RemoveAll(c.dir))
}
