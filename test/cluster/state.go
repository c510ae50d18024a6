// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/test/testutil/clusterfile"
)

// state is a running cluster, as DIR/cluster.json describes it.
type state struct{ clusterfile.Cluster }

func newState(p plan, bin string) *state {
	s := &state{clusterfile.Cluster{
		Name: p.Name, Dir: p.Dir, Bin: bin, CNI: p.CNI, ProxyMode: p.ProxyMode, MkfsErofs: p.Erofs.File,
		MkfsErofsVersion: p.Erofs.Version,
		Kubeconfig:       filepath.Join(p.Dir, "admin.conf"), KubeconfigLAN: filepath.Join(p.Dir, "admin-lan.conf"),
		ServiceCIDR: p.Services.String(), PodCIDR: p.Pods.String(), DNSIP: p.DNSIP.String(), APIServer: p.apiServer(),
		Registry: clusterfile.Registry{Address: registryName, LAN: registryOnLAN(p)},
		LAN: clusterfile.LAN{Subnet: p.LAN.String(), Gateway: p.Gateway.String(), ServiceAddresses: p.VIPs.String(),
			NetnsPath: p.netnsPath("lan"), Bridge: lanBridge},
		Client: clusterfile.Host{NetnsPath: p.netnsPath("client"), IP: p.ClientIP.String(), Interface: nodeInterface},
		ControlPlane: clusterfile.Host{NetnsPath: p.netnsPath(controlMachine), IP: p.ControlIP.String(),
			Interface: nodeInterface},
		Versions: map[string]string{"kubernetes": p.Kubernetes, "etcd": etcdOf(p.Kubernetes), "containerd": containerdVersion,
			"coredns": corednsVersion, "cni-plugins": cniVersion, "flannel": flannelVersion, "cilium": ciliumVersion},
	}}
	for _, n := range p.Nodes {
		s.Nodes = append(s.Nodes, clusterfile.Node{Name: n.Name, IP: n.IP.String(), PodCIDR: n.Pods.String(),
			NetnsPath: p.netnsPath(n.Name), Interface: nodeInterface, LANPort: n.Name, Dir: p.machineDir(n.Name),
			Cgroup: p.cgroup(n.Name)})
	}
	return s
}

// plan computes the plan of a running cluster again.
func (s *state) plan() (plan, error) {
	p, err := newPlan(s.Name, s.Dir, s.CNI, s.ProxyMode, len(s.Nodes))
	p.Kubernetes = s.Versions["kubernetes"]
	p.Erofs = erofs.Maker{File: s.MkfsErofs, Version: s.MkfsErofsVersion}
	return p, err
}

func (s *state) node(name string) (*clusterfile.Node, error) {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i], nil
		}
	}
	return nil, fmt.Errorf("no node %q in cluster %s: there are node-1 to node-%d", name, s.Name, len(s.Nodes))
}

func (s *state) save() error { return writeJSON(clusterfile.Path(s.Dir), s) }

// loadState reads the description of the cluster in a folder.
func loadState(dir string) (*state, error) {
	c, err := clusterfile.Load(clusterfile.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no cluster in %s: start one with `up --dir %s`: %w", dir, dir, err)
	}
	if err != nil {
		return nil, err
	}
	return &state{*c}, nil
}

// lock locks a folder against concurrent commands. It waits for the lock.
func lock(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
