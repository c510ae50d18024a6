// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"wangell.loutres.me/test/testutil/clusterfile"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/netlab"
)

// cluster is the cluster under test.
type cluster struct {
	*clusterfile.Cluster
	dir    string
	api    client.Client
	client *netlab.Namespace // a host outside of the cluster, on the nodes' LAN
	nodes  []*node
}

// node is a node of the cluster.
type node struct {
	name string
	ip   netip.Addr
	ns   *netlab.Namespace
}

// openCluster reads a cluster.json and opens the network namespaces of the cluster.
func openCluster(file string) (*cluster, error) {
	described, err := clusterfile.Load(file)
	if err != nil {
		return nil, err
	}
	c := &cluster{Cluster: described, dir: filepath.Dir(file)}
	if c.api, err = newAPI(c.Kubeconfig); err != nil {
		return nil, err
	}
	if c.client, err = netlab.Existing(c.Client.NetnsPath); err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		ip, err := netip.ParseAddr(n.IP)
		if err != nil {
			return nil, fmt.Errorf("%s: node %s: %w", file, n.Name, err)
		}
		ns, err := netlab.Existing(n.NetnsPath)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &node{n.Name, ip, ns})
	}
	return c, nil
}

// apiAway are parts of the errors of kubectl while the API server, which is not under test, is away or overloaded.
var apiAway = []string{
	"Unable to connect to the server", "was refused", "TLS handshake timeout", "etcdserver:",
	"the server is currently unable to handle the request",
	"the server was unable to return a response in the time allotted", "unexpected EOF", "connection reset by peer",
	"i/o timeout",
}

// kubectl runs kubectl, with a document on its standard input if there is one. It tries again while the API server is
// away.
func (c *cluster) kubectl(stdin string, args ...string) (out string, err error) {
	for end := time.Now().Add(e2e.Patience); ; time.Sleep(500 * time.Millisecond) {
		out, err = c.kubectlOnce(stdin, args...)
		if err == nil || time.Now().After(end) || !slices.ContainsFunc(apiAway,
			func(s string) bool { return strings.Contains(err.Error(), s) }) {
			return out, err
		}
	}
}

func (c *cluster) kubectlOnce(stdin string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(c.Bin, "kubectl"), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(bad.String()))
	}
	return out.String(), nil
}

// command runs test/cluster's program for the cluster under test.
func (c *cluster) command(t *testing.T, args ...string) {
	t.Helper()
	// Flags come before names.
	if err := clusterCommand(append([]string{args[0], "--dir", c.dir}, args[1:]...)...); err != nil {
		t.Fatal(err)
	}
}

// node returns a node by its name; nil if there is none.
func (c *cluster) node(name string) *node {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// resolve asks the cluster's DNS from a namespace.
func (c *cluster) resolve(from *netlab.Namespace, name string) (netip.Addr, error) {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return from.Dialer().DialContext(ctx, network, net.JoinHostPort(c.DNSIP, "53"))
	}}
	ctx, cancel := context.WithTimeout(context.Background(), e2e.Patience)
	defer cancel()
	addrs, err := r.LookupNetIP(ctx, "ip4", name)
	if err != nil {
		return netip.Addr{}, err
	}
	return addrs[0].Unmap(), nil
}

// podNamespace returns the network namespace of a running pod, on whichever node it runs.
func (c *cluster) podNamespace(t *testing.T, namespace, pod string) *netlab.Namespace {
	t.Helper()
	out := e2e.Must(c.kubectl("", "get", "pod", "-n", namespace, pod, "-o",
		"jsonpath={.spec.nodeName} {.metadata.uid}"))(t)
	where, uid, _ := strings.Cut(strings.TrimSpace(out), " ")
	n := c.node(where)
	if n == nil {
		t.Fatalf("pod %s/%s is on no node: %q", namespace, pod, out)
	}
	pid, err := processOf(uid, "")
	if err != nil {
		t.Fatalf("pod %s/%s: %v", namespace, pod, err)
	}
	return e2e.Must(netlab.Existing(fmt.Sprintf("/proc/%d/ns/net", pid)))(t)
}

// processOf returns a process of a pod whose command line has a part. The pod's processes are found by their cgroups,
// which the kubelet names by the pod's UID.
func processOf(uid, part string) (int, error) {
	names := []string{"pod" + uid, "pod" + strings.ReplaceAll(uid, "-", "_")}
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has just exited
		}
		if !bytes.Contains(b, []byte(names[0])) && !bytes.Contains(b, []byte(names[1])) {
			continue
		}
		command, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
		if err != nil || !bytes.Contains(command, []byte(part)) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/cgroup", &pid); err == nil {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process %q has its cgroup", part)
}
