// SPDX-License-Identifier: Apache-2.0

// Package clusterfile is the shape of DIR/cluster.json, in which test/cluster describes a running cluster to the tests
// and experiments that use it. It has no dependencies.
package clusterfile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Name is the name of the file in the cluster's folder.
const Name = "cluster.json"

// Cluster is a running cluster. Paths and process ids are those of the machine that it runs on.
type Cluster struct {
	Name string `json:"name"`
	Dir  string `json:"dir"`
	// Bin is the folder of the cluster's programs, kubectl among them.
	Bin string `json:"bin"`
	// Kubeconfig is for programs on the machine itself: it reaches the API server through a port of 127.0.0.1.
	Kubeconfig string `json:"kubeconfig"`
	// KubeconfigLAN is for programs in a network namespace of the cluster.
	KubeconfigLAN string `json:"kubeconfigLAN"`
	// CNI is the pod network, bridge or flannel; ProxyMode is kube-proxy's mode, iptables or nftables.
	CNI       string `json:"cni"`
	ProxyMode string `json:"proxyMode"`
	// MkfsErofs is the program with which images are unpacked for the snapshotter erofs; empty with overlayfs.
	MkfsErofs        string `json:"mkfsErofs,omitempty"`
	MkfsErofsVersion string `json:"mkfsErofsVersion,omitempty"`
	// ServiceCIDR is the range of ClusterIPs, PodCIDR that of all pods.
	ServiceCIDR string `json:"serviceCIDR"`
	PodCIDR     string `json:"podCIDR"`
	DNSIP       string `json:"dnsIP"`
	// APIServer is the API server's address and port on the LAN.
	APIServer    string   `json:"apiServer"`
	Registry     Registry `json:"registry"`
	LAN          LAN      `json:"lan"`
	Client       Host     `json:"client"`
	ControlPlane Host     `json:"controlPlane"`
	Nodes        []Node   `json:"nodes"`
	Hub          Process  `json:"hub"`
	// Versions are those of the running programs, by program.
	Versions map[string]string `json:"versions"`
}

// Registry is the image registry that every node pulls from. It speaks plain HTTP.
type Registry struct {
	// Address is the registry's name in image references.
	Address string `json:"address"`
	// LAN is its address on the LAN, PushAddress its address on the machine's loopback.
	LAN         string `json:"lan"`
	PushAddress string `json:"pushAddress"`
}

// LAN is the network that connects nodes, control plane and client.
type LAN struct {
	Subnet  string `json:"subnet"`
	Gateway string `json:"gateway"`
	// ServiceAddresses is an unused range in the subnet, for addresses of Services.
	ServiceAddresses string `json:"serviceAddresses"`
	NetnsPath        string `json:"netnsPath"`
	Bridge           string `json:"bridge"`
}

// Host is a host on the LAN that is not a node.
type Host struct {
	NetnsPath string `json:"netnsPath"`
	IP        string `json:"ip"`
	Interface string `json:"interface"`
	// HolderPid is the first process of the host's PID and mount namespaces; 0 if it has none of its own.
	HolderPid int `json:"holderPid,omitempty"`
}

// Node is one node of the cluster.
type Node struct {
	Name      string `json:"name"`
	IP        string `json:"ip"`
	PodCIDR   string `json:"podCIDR"`
	NetnsPath string `json:"netnsPath"`
	Interface string `json:"interface"`
	// LANPort is the bridge's end of the node's link, in the network namespace of the LAN.
	LANPort string `json:"lanPort"`
	Dir     string `json:"dir"`
	// Cgroup is the node's cgroup, relative to the root of each hierarchy. Within the node it is the root; its pods are
	// in the child kubepods.
	Cgroup string `json:"cgroup"`
	// Up is false after node-kill.
	Up bool `json:"up"`
	// HolderPid is the first process of the node's mount, PID and UTS namespaces. All process ids are 0 while the node
	// is down.
	HolderPid     int `json:"holderPid"`
	KubeletPid    int `json:"kubeletPid"`
	ContainerdPid int `json:"containerdPid"`
	ProxyPid      int `json:"proxyPid"`
	// ContainerdSocket is the path of containerd's socket through the node's mount namespace.
	ContainerdSocket string `json:"containerdSocket"`
}

// Process is a process that outlives the command that started it. Its start time distinguishes it from a later process
// with the same id.
type Process struct {
	Pid int `json:"pid"`
	// Start is in clock ticks since boot: field 22 of /proc/PID/stat, see proc(5).
	Start uint64 `json:"start"`
}

// Load reads a cluster.json.
func Load(file string) (*Cluster, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the description of a cluster: %w", err)
	}
	c := &Cluster{}
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("%s is not the description of a cluster: %w", file, err)
	}
	if c.Kubeconfig == "" || c.Bin == "" || len(c.Nodes) == 0 {
		return nil, fmt.Errorf("%s is not the description of a running cluster: it lacks bin, kubeconfig or nodes", file)
	}
	return c, nil
}

// Path returns the path of the file in a cluster's folder.
func Path(dir string) string { return filepath.Join(dir, Name) }
