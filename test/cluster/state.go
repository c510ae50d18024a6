// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A state is a running cluster as DIR/cluster.json tells it to tests. Paths are the machine's own, process ids too.
type state struct {
	Name       string `json:"name"`
	Dir        string `json:"dir"`
	Bin        string `json:"bin"`        // folder of the programs; kubectl is in it
	Kubeconfig string `json:"kubeconfig"` // for the machine itself: through a port of its loopback
	// KubeconfigLAN is for programs in a namespace of the cluster.
	KubeconfigLAN string       `json:"kubeconfigLAN"`
	CNI           string       `json:"cni"`
	ProxyMode     string       `json:"proxyMode"`
	ServiceCIDR   string       `json:"serviceCIDR"`
	PodCIDR       string       `json:"podCIDR"`
	DNSIP         string       `json:"dnsIP"`
	APIServer     string       `json:"apiServer"` // on the LAN
	Registry      registryInfo `json:"registry"`
	LAN           lanInfo      `json:"lan"`
	Client        hostInfo     `json:"client"`
	ControlPlane  hostInfo     `json:"controlPlane"`
	Nodes         []nodeInfo   `json:"nodes"`
	Hub           process      `json:"hub"`
	// Versions of what runs, by program.
	Versions map[string]string `json:"versions"`
}

type registryInfo struct {
	// Address is the registry's name in image references. Nodes take every other registry from it too.
	Address string `json:"address"`
	LAN     string `json:"lan"` // its address on the LAN, plain HTTP
	// PushAddress is its address on the machine's own loopback, plain HTTP.
	PushAddress string `json:"pushAddress"`
}

type lanInfo struct {
	Subnet  string `json:"subnet"`
	Gateway string `json:"gateway"`
	// ServiceAddresses is a range in the subnet that nobody uses.
	ServiceAddresses string `json:"serviceAddresses"`
	NetnsPath        string `json:"netnsPath"`
	Bridge           string `json:"bridge"`
}

// A hostInfo is a host on the LAN that is no node. HolderPid is the first process of its PID and mount namespace; 0 if
// it has none of its own.
type hostInfo struct {
	NetnsPath string `json:"netnsPath"`
	IP        string `json:"ip"`
	Interface string `json:"interface"`
	HolderPid int    `json:"holderPid,omitempty"`
}

type nodeInfo struct {
	Name      string `json:"name"`
	IP        string `json:"ip"`
	PodCIDR   string `json:"podCIDR"`
	NetnsPath string `json:"netnsPath"`
	Interface string `json:"interface"`
	// LANPort is the bridge's end of the node's link, in the LAN's namespace.
	LANPort string `json:"lanPort"`
	Dir     string `json:"dir"`
	Cgroup  string `json:"cgroup"` // below the root of each hierarchy, and the root within the node; the pods are in its kubepods
	Up      bool   `json:"up"`
	// HolderPid is the first process of the node's mount, PID and UTS namespace; 0 while the node is down.
	HolderPid     int `json:"holderPid"`
	KubeletPid    int `json:"kubeletPid"`
	ContainerdPid int `json:"containerdPid"`
	ProxyPid      int `json:"proxyPid"`
	// ContainerdSocket is the way to containerd's socket through the node's mount namespace.
	ContainerdSocket string `json:"containerdSocket"`
}

func newState(p plan, bin string) *state {
	s := &state{
		Name: p.Name, Dir: p.Dir, Bin: bin, CNI: p.CNI, ProxyMode: p.ProxyMode,
		Kubeconfig: filepath.Join(p.Dir, "admin.conf"), KubeconfigLAN: filepath.Join(p.Dir, "admin-lan.conf"),
		ServiceCIDR: p.Services.String(), PodCIDR: p.Pods.String(), DNSIP: p.DNSIP.String(), APIServer: p.apiServer(),
		Registry: registryInfo{Address: registryName, LAN: registryOnLAN(p)},
		LAN: lanInfo{Subnet: p.LAN.String(), Gateway: p.Gateway.String(), ServiceAddresses: p.VIPs.String(),
			NetnsPath: p.netnsPath("lan"), Bridge: lanBridge},
		Client:       hostInfo{NetnsPath: p.netnsPath("client"), IP: p.ClientIP.String(), Interface: nodeInterface},
		ControlPlane: hostInfo{NetnsPath: p.netnsPath(controlMachine), IP: p.ControlIP.String(), Interface: nodeInterface},
		Versions: map[string]string{"kubernetes": kubernetesVersion, "etcd": etcdVersion, "containerd": containerdVersion,
			"coredns": corednsVersion, "cni-plugins": cniVersion, "flannel": flannelVersion},
	}
	for _, n := range p.Nodes {
		s.Nodes = append(s.Nodes, nodeInfo{Name: n.Name, IP: n.IP.String(), PodCIDR: n.Pods.String(),
			NetnsPath: p.netnsPath(n.Name), Interface: nodeInterface, LANPort: n.Name, Dir: p.machineDir(n.Name),
			Cgroup: p.cgroup(n.Name)})
	}
	return s
}

// plan works the plan of a running cluster out again.
func (s *state) plan() (plan, error) { return newPlan(s.Name, s.Dir, s.CNI, s.ProxyMode, len(s.Nodes)) }

func (s *state) node(name string) (*nodeInfo, error) {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i], nil
		}
	}
	return nil, fmt.Errorf("no node %q in cluster %s: there are node-1 to node-%d", name, s.Name, len(s.Nodes))
}

func stateFile(dir string) string { return filepath.Join(dir, "cluster.json") }

func (s *state) save() error { return writeJSON(stateFile(s.Dir), s) }

// loadState reads what runs in a folder.
func loadState(dir string) (*state, error) {
	b, err := os.ReadFile(stateFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no cluster in %s: start one with `up --dir %s`: %w", dir, dir, err)
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", stateFile(dir), err)
	}
	return &s, nil
}

// refresh looks up the process ids of a node's services; they change when a service is started again.
func (n *nodeInfo) refresh(ctx context.Context) error {
	pids, err := machineServices(ctx, n.Dir)
	if err != nil {
		return err
	}
	here, err := hostPids(n.HolderPid)
	if err != nil {
		return err
	}
	n.ContainerdPid, n.KubeletPid, n.ProxyPid = here[pids[containerdService]], here[pids[kubeletService]], here[pids[proxyService]]
	n.ContainerdSocket = fmt.Sprintf("/proc/%d/root%s", n.HolderPid, containerdSocket)
	return nil
}

// lock keeps two commands from changing a folder at the same time; it waits for the other.
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
