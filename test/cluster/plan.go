// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/test/testutil/netlab"
)

const (
	// maxNodes is the largest number of nodes: each uses one /24 of the 64 in the pod range.
	maxNodes = 60
	// nodeGrace is the default of NodeGrace. It makes tests of dead nodes fast; the default of Kubernetes is 50 s.
	nodeGrace = 8 * time.Second
	// slots is the number of /16 address ranges that clusters are spread over: 10.200.0.0 to 10.207.0.0.
	slots = 8
	// nodeInterface is the name of the link to the LAN on nodes, client and control plane.
	nodeInterface = "eth0"
	// lanBridge is the name of the bridge in the LAN's namespace.
	lanBridge = "lan0"
	// registryName is the name of the local registry in image references.
	registryName = "registry.cluster.local:5000"
)

// Pod networks.
const (
	cniBridge  = "bridge"
	cniFlannel = "flannel"
	cniCilium  = "cilium"
)

// plan has all names and addresses of a cluster. It is a pure function of the flags.
type plan struct {
	Name      string
	Dir       string
	CNI       string // cniBridge, cniFlannel or cniCilium
	ProxyMode string // iptables or nftables
	// Kubernetes is its version, v1.34.4 for example.
	Kubernetes string
	// Erofs is set if images are kept by the snapshotter erofs.
	Erofs erofs.Maker
	// NodeGrace is the time without a renewed lease after which a node counts as dead.
	NodeGrace time.Duration

	LAN       netip.Prefix // nodes, client, control plane; a /22
	VIPs      netip.Prefix // an unused /24 in the LAN, for service addresses
	Pods      netip.Prefix // a /18, of which each node has a /24
	Services  netip.Prefix // ClusterIPs; a /20
	Gateway   netip.Addr   // the bridge: the default route on the LAN
	ControlIP netip.Addr
	ClientIP  netip.Addr
	DNSIP     netip.Addr
	Nodes     []nodePlan
}

// nodePlan has the names and addresses of one node.
type nodePlan struct {
	Name string
	IP   netip.Addr
	Pods netip.Prefix
}

var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,19}$`)

// newPlan computes the addresses of a cluster. Its /16 depends on the name alone. Two clusters with the same range can
// run side by side, as no network of a cluster is connected to anything outside of it.
func newPlan(name, dir, cni, proxyMode string, nodes int) (plan, error) {
	var p plan
	switch {
	case !validName.MatchString(name):
		return p, fmt.Errorf("--name %q: use at most 20 lower-case letters, digits and dashes, a letter first", name)
	case nodes < 1 || nodes > maxNodes:
		return p, fmt.Errorf("--nodes %d: from 1 to %d", nodes, maxNodes)
	case cni != cniBridge && cni != cniFlannel && cni != cniCilium:
		return p, fmt.Errorf("--cni %q: bridge, flannel or cilium", cni)
	}
	if err := checkProxyMode(proxyMode); err != nil {
		return p, err
	}
	if err := checkDir(dir); err != nil {
		return p, err
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	second := byte(200 + h.Sum32()%slots)
	at := func(third, fourth byte) netip.Addr { return netip.AddrFrom4([4]byte{10, second, third, fourth}) }
	p = plan{
		Name: name, Dir: dir, CNI: cni, ProxyMode: proxyMode, Kubernetes: kubernetesVersion,
		NodeGrace: nodeGrace,
		LAN:       netip.PrefixFrom(at(0, 0), 22),
		VIPs:      netip.PrefixFrom(at(2, 0), 24),
		Pods:      netip.PrefixFrom(at(64, 0), 18),
		Services:  netip.PrefixFrom(at(128, 0), 20),
		Gateway:   at(0, 1),
		ControlIP: at(0, 2),
		ClientIP:  at(0, 3),
		DNSIP:     at(128, 10),
	}
	for i := 1; i <= nodes; i++ {
		p.Nodes = append(p.Nodes, nodePlan{
			Name: fmt.Sprintf("node-%d", i),
			IP:   at(0, byte(10+i)),
			Pods: netip.PrefixFrom(at(byte(64+i), 0), 24),
		})
	}
	return p, nil
}

func checkProxyMode(mode string) error {
	if mode != "iptables" && mode != "nftables" {
		return fmt.Errorf("--proxy-mode %q: iptables or nftables", mode)
	}
	return nil
}

// checkDir refuses folders that a node's own mounts hide, and paths that are too long for sockets (108 bytes, unix(7)).
func checkDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("--dir %q: give an absolute path", dir)
	}
	if len(dir) > 60 {
		return fmt.Errorf("--dir %q: %d bytes; at most 60, as socket paths below it are limited to 107", dir, len(dir))
	}
	for _, hidden := range []string{"/etc", "/opt", "/run", "/var/run", "/var/lib", "/var/log", "/proc", "/sys"} {
		if dir == hidden || strings.HasPrefix(dir, hidden+"/") {
			return fmt.Errorf("--dir %q: nodes have their own %s: choose a folder elsewhere, such as /var/tmp/NAME", dir, hidden)
		}
	}
	return nil
}

// netns returns the name of a network namespace of the cluster: lan, client, control or the name of a node.
func (p plan) netns(part string) string { return p.Name + "-" + part }

// netnsPath returns the path of a network namespace of the cluster.
func (p plan) netnsPath(part string) string { return filepath.Join(netlab.Dir, p.netns(part)) }

// machineDir returns the folder of a node or of the control plane.
func (p plan) machineDir(machine string) string { return filepath.Join(p.Dir, machine) }

// cgroup returns the cgroup of a node relative to the root of each hierarchy; without a node, that of the cluster.
func (p plan) cgroup(node string) string { return filepath.Join("/wangell-cluster-"+p.Name, node) }

// apiServer returns the URL of the API server on the LAN.
func (p plan) apiServer() string { return fmt.Sprintf("https://%s:6443", p.ControlIP) }

// kubernetesIP returns the ClusterIP of the Service default/kubernetes.
func (p plan) kubernetesIP() netip.Addr { return p.Services.Addr().Next() }

func (p plan) node(name string) (nodePlan, error) {
	for _, n := range p.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nodePlan{}, fmt.Errorf("no node %q in cluster %s: there are node-1 to node-%d", name, p.Name, len(p.Nodes))
}
