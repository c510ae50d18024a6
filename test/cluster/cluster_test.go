// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/test/testutil/need"
)

// testNodes may be lowered on small machines; some tests need two nodes.
var testNodes = flag.Int("nodes", 3, "how many nodes the tests' clusters have, 2 at least")

// lastNode is the node that is killed.
func lastNode() string { return fmt.Sprintf("node-%d", *testNodes) }

// testCluster runs the program as users do, with its own name and folder.
type testCluster struct {
	t         *testing.T
	program   string
	name, dir string
}

func newTestCluster(t *testing.T, name string) testCluster {
	t.Helper()
	need.Root(t)
	base, err := os.MkdirTemp("/var/tmp", "wgct")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	c := testCluster{t: t, program: filepath.Join(base, "program"), name: name, dir: filepath.Join(base, "c")}
	if out, err := exec.Command("go", "build", "-o", c.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := c.command("down").CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	return c
}

// in returns the cluster for a subtest.
func (c testCluster) in(t *testing.T) testCluster {
	c.t = t
	return c
}

func (c testCluster) command(word string, args ...string) *exec.Cmd {
	return exec.Command(c.program, append([]string{word, "--name", c.name, "--dir", c.dir}, args...)...)
}

// run runs a command and returns its output. A failure fails the test.
func (c testCluster) run(word string, args ...string) string {
	c.t.Helper()
	out, err := c.try(word, args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c testCluster) try(word string, args ...string) (string, error) {
	cmd := c.command(word, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s%s", word, strings.Join(args, " "), err, stdout.String(),
			stderr.String())
	}
	return stdout.String(), nil
}

func (c testCluster) kubectl(args ...string) string {
	c.t.Helper()
	return strings.TrimSpace(c.run("kubectl", append([]string{"--"}, args...)...))
}

// eventually waits until f succeeds.
func (c testCluster) eventually(within time.Duration, what string, f func() error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := poll(ctx, 50*time.Millisecond, what, f); err != nil {
		c.t.Fatal(err)
	}
}

// get requests a URL from a network namespace.
func get(netns, url string) (string, error) {
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, addr string) (conn net.Conn, err error) {
			err = inNetns(netns, func() error {
				var d net.Dialer
				conn, err = d.DialContext(ctx, "tcp4", addr)
				return err
			})
			return conn, err
		}}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", url, resp.Status, b.String())
	}
	return strings.TrimSpace(b.String()), nil
}

// traces returns everything of a cluster that exists on the machine.
func (c testCluster) traces() []string {
	c.t.Helper()
	found, err := leftOvers(c.name)
	if err != nil {
		c.t.Fatal(err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, c.dir) || strings.Contains(line, "/"+c.name+"-") {
			found = append(found, "mount "+line)
		}
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, file := range procs {
		cmdline, err := os.ReadFile(file)
		if err == nil && (bytes.Contains(cmdline, []byte(c.dir+"/")) || bytes.Contains(cmdline, []byte(c.name+"-node"))) {
			found = append(found, file+" "+string(cmdline))
		}
	}
	if exists(c.dir) {
		found = append(found, c.dir)
	}
	return found
}

// machineState is what a cluster must not change: the machine's links, addresses, routes and firewall, and the settings
// that kubelet and kube-proxy are known to write.
func machineState(t *testing.T) []string {
	t.Helper()
	var all []string
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		all = append(all, fmt.Sprint("link ", l.Attrs().Name, l.Attrs().Flags))
	}
	routes, err := netlink.RouteList(nil, unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		all = append(all, fmt.Sprint("route ", r))
	}
	rules, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	all = append(all, "rules "+string(rules))
	for _, pattern := range []string{
		"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/panic*",
		"/proc/sys/kernel/keys/root_*", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/*/route_localnet",
		"/proc/sys/net/netfilter/nf_conntrack_*max", "/proc/sys/net/netfilter/nf_conntrack_*timeout*",
		"/proc/sys/net/bridge/*",
	} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, f+" "+string(b))
		}
	}
	for _, dir := range []string{"/var/lib", "/opt", "/usr/libexec", "/etc", "/var/log"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && (strings.Contains(path, "cni") || strings.Contains(path, "kube") || path == "/var/log/pods" ||
				path == "/var/log/containers") {
				all = append(all, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// pushProbe builds the probe and pushes it with the command for users.
func (c testCluster) pushProbe() string {
	c.t.Helper()
	file := filepath.Join(filepath.Dir(c.program), "probe")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", file, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		c.t.Fatalf("build probe: %v\n%s", err, out)
	}
	img, err := programImage(file)
	if err != nil {
		c.t.Fatal(err)
	}
	const ref = registryName + "/probe:1"
	tag, err := name.NewTag(ref)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := tarball.WriteToFile(file+".tar", tag, img); err != nil {
		c.t.Fatal(err)
	}
	c.run("push", file+".tar", ref)
	return ref
}

const probeManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: probe}
spec:
  replicas: NODES
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: probe}}
      containers:
      - name: probe
        image: IMAGE
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: probe}
spec: {selector: {app: probe}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  loadBalancerClass: example.com/test
  selector: {app: probe}
  ports: [{port: 80, targetPort: 8080}]
`

// runProbes runs a probe on each node.
func (c testCluster) runProbes(s *state) {
	c.t.Helper()
	manifest := strings.NewReplacer("IMAGE", c.pushProbe(), "NODES", strconv.Itoa(*testNodes)).Replace(probeManifest)
	if err := apply(c.t.Context(), s, manifest); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("rollout", "status", "deployment/probe", "--timeout=60s")
}

// pods maps each node to the address of its probe.
func (c testCluster) pods() map[string]string {
	c.t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(c.kubectl("get", "pods", "-l=app=probe", "--field-selector=status.phase=Running",
		"-o", `jsonpath={range .items[*]}{.spec.nodeName} {.status.podIP}{"\n"}{end}`)) {
		if f := strings.Fields(line); len(f) == 2 {
			found[f[0]] = f[1]
		}
	}
	return found
}

// probeIP returns the ClusterIP of the probes.
func (c testCluster) probeIP() string {
	c.t.Helper()
	return c.kubectl("get", "service", "probe", "-o", "jsonpath={.spec.clusterIP}")
}

// podToPod sends a request from each probe to each other.
func (c testCluster) podToPod(s *state) {
	t := c.t
	t.Helper()
	at := c.pods()
	if len(at) != *testNodes {
		t.Fatalf("pods on nodes %v, want one on each of %d", at, *testNodes)
	}
	for from, a := range at {
		for to, b := range at {
			got, err := get(s.ControlPlane.NetnsPath, fmt.Sprintf("http://%s:8080/get?url=http://%s:8080/", a, b))
			if err != nil || !strings.HasSuffix(got, " "+a) {
				t.Errorf("from the pod on %s (%s) to the one on %s: %q, %v, want its own address seen", from, a, to, got, err)
			}
		}
	}
}

// service sends requests to the Service: by name from each probe, and to the ClusterIP from a node until all probes
// have answered. It does not use the API.
func (c testCluster) service(s *state, at map[string]string) {
	t := c.t
	t.Helper()
	// kube-proxy has the last pods a little after the Deployment is complete.
	for node, a := range at {
		c.eventually(20*time.Second, "the Service to answer the pod on "+node, func() error {
			_, err := get(s.ControlPlane.NetnsPath, "http://"+a+":8080/get?url=http://probe.default.svc.cluster.local/")
			return err
		})
	}
	addrs, err := get(s.ControlPlane.NetnsPath, "http://"+at["node-1"]+":8080/lookup?name=probe")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	c.eventually(20*time.Second, "the ClusterIP to lead to all pods", func() error {
		got, err := get(s.Nodes[0].NetnsPath, "http://"+strings.Trim(addrs, "[]")+"/")
		if err != nil {
			return err
		}
		host, _, _ := strings.Cut(got, " ")
		if seen[host] = true; len(seen) < *testNodes {
			return fmt.Errorf("it led to %v", seen)
		}
		return nil
	})
}

// TestClusterWorksSurvivesFaultsAndLeavesNothing starts nodes, uses what tests use of a cluster, breaks it, and looks
// for what is left.
func TestClusterWorksSurvivesFaultsAndLeavesNothing(t *testing.T) {
	need.Long(t, "it starts a whole cluster")
	before := machineState(t)
	c := newTestCluster(t, "selftest")
	t.Log(c.run("up", "--nodes", strconv.Itoa(*testNodes)))
	s, err := loadState(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	c.runProbes(s)
	// ruled reports whether kube-proxy on a node has rules with a text.
	ruled := func(node, text string) error {
		out, err := c.try("exec", "--node", node, "--", "sh", "-c", "iptables-save; nft list ruleset")
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("no rule with %q", text)
		}
		return err
	}

	t.Run("pod to pod", func(t *testing.T) { c.in(t).podToPod(s) })
	t.Run("service iptables", func(t *testing.T) { c.in(t).service(s, c.pods()) })
	t.Run("DNS from a pod", func(t *testing.T) {
		c := c.in(t)
		clusterIP := c.probeIP()
		for node, a := range c.pods() {
			got, err := get(s.ControlPlane.NetnsPath, "http://"+a+":8080/lookup?name=probe")
			if err != nil || got != "["+clusterIP+"]" {
				t.Errorf("from the pod on %s: %q, %v, want %s", node, got, err, clusterIP)
			}
		}
	})
	t.Run("logs and exec", func(t *testing.T) {
		c := c.in(t)
		if got := c.kubectl("logs", "deployment/probe"); !strings.Contains(got, "probe listens") {
			t.Errorf("logs: %q", got)
		}
		// The image has no shell. The program itself is run again, and reports that its port is in use.
		_, err := c.try("kubectl", "--", "exec", "deployment/probe", "--", "/probe")
		if err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("exec: %v", err)
		}
	})
	t.Run("load balancer", func(t *testing.T) {
		c := c.in(t)
		vip := strings.TrimSuffix(s.LAN.ServiceAddresses, "0/24") + "9"
		patch := func(mode string) {
			t.Helper()
			c.kubectl("patch", "service", "balanced", "--subresource=status", "--type=merge", "-p",
				fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q,"ipMode":%q}]}}}`, vip, mode))
		}
		patch("VIP")
		c.eventually(20*time.Second, "a rule for the address in mode VIP", func() error { return ruled("node-2", vip) })
		patch("Proxy")
		c.eventually(20*time.Second, "no rule for the address in mode Proxy", func() error {
			err := ruled("node-2", vip)
			if err == nil {
				return fmt.Errorf("rules have %s", vip)
			}
			if !strings.HasPrefix(err.Error(), "no rule") {
				return err
			}
			return nil
		})
	})
	t.Run("client", func(t *testing.T) {
		c := c.in(t)
		out := c.run("exec", "--client", "--", "ip", "-br", "address", "show", s.Client.Interface)
		if !strings.Contains(out, s.Client.IP+"/") {
			t.Errorf("the client's addresses: %s", out)
		}
		// kube-proxy's health port.
		if got, err := get(s.Client.NetnsPath, "http://"+s.Nodes[1].IP+":10256/livez"); err != nil {
			t.Errorf("client to node-2: %s %v", got, err)
		}
	})
	t.Run("service nftables", func(t *testing.T) {
		c := c.in(t)
		c.run("restart-proxy", "--proxy-mode", "nftables")
		if err := ruled("node-1", "KUBE-SERVICES"); err == nil {
			t.Error("rules of the iptables mode are left")
		}
		if err := ruled("node-1", "table ip kube-proxy"); err != nil {
			t.Error(err)
		}
		c.service(s, c.pods())
		c.podToPod(s)
	})
	t.Run("back to iptables", func(t *testing.T) {
		c := c.in(t)
		c.run("restart-proxy", "--proxy-mode", "iptables")
		if err := ruled("node-1", "table ip kube-proxy"); err == nil {
			t.Error("rules of the nftables mode are left")
		}
		c.service(s, c.pods())
	})
	t.Run("API server stopped", func(t *testing.T) {
		c := c.in(t)
		at := c.pods()
		c.run("stop-apiserver")
		if out, err := c.try("kubectl", "--", "--request-timeout=3s", "get", "nodes"); err == nil {
			t.Errorf("the API still answers: %s", out)
		}
		c.service(s, at) // running pods are not affected
		c.run("start-apiserver")
		c.kubectl("get", "nodes")
	})
	t.Run("node killed", func(t *testing.T) {
		c := c.in(t)
		pod := c.pods()[lastNode()]
		// After the outage, controllers may consider all nodes dead until they have read the leases again.
		lease := func() string {
			return c.kubectl("-n", "kube-node-lease", "get", "lease", lastNode(), "-o", "jsonpath={.spec.renewTime}")
		}
		old := lease()
		c.eventually(30*time.Second, lastNode()+" to renew its lease", func() error {
			if lease() == old {
				return fmt.Errorf("still of %s", old)
			}
			return nil
		})
		c.eventually(60*time.Second, "all nodes to be Ready for 5 s", func() error {
			for range 10 {
				if got := c.kubectl("get", "nodes", "-o",
					`jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`); strings.Count(got, "True") != *testNodes {
					return fmt.Errorf("Ready: %s", got)
				}
				time.Sleep(500 * time.Millisecond)
			}
			return nil
		})
		c.run("node-kill", lastNode())
		killed := time.Now()
		c.eventually(30*time.Second, lastNode()+" to be known as dead", func() error {
			if got := c.kubectl("get", "node", lastNode(), "-o",
				`jsonpath={.status.conditions[?(@.type=="Ready")].status}`); got != "Unknown" {
				return fmt.Errorf("Ready is %s", got)
			}
			return nil
		})
		t.Logf("known as dead after %.1f s", time.Since(killed).Seconds())
		if got, err := get(s.ControlPlane.NetnsPath, "http://"+pod+":8080/"); err == nil {
			t.Errorf("its pod answers: %s", got)
		}
		c.run("node-start", lastNode())
		c.eventually(60*time.Second, "a pod on "+lastNode()+" to answer", func() error {
			_, err := get(s.ControlPlane.NetnsPath, "http://"+c.pods()[lastNode()]+":8080/")
			return err
		})
		c.podToPod(s)
	})
	t.Run("down", func(t *testing.T) {
		c := c.in(t)
		if len(c.traces()) == 0 {
			t.Error("the search for traces does not even find a running cluster")
		}
		c.run("down")
		if left := c.traces(); len(left) > 0 {
			t.Errorf("left:\n%s", strings.Join(left, "\n"))
		}
		if after := machineState(t); !slices.Equal(before, after) {
			t.Errorf("the machine is not as it was:\n%s\nwas\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
	})
}

// TestFlannelConnectsPodsAndServices uses pods and Services over vxlan.
func TestFlannelConnectsPodsAndServices(t *testing.T) {
	need.Long(t, "it starts a whole cluster")
	c := newTestCluster(t, "selftest-fl")
	t.Log(c.run("up", "--nodes", strconv.Itoa(*testNodes), "--cni", "flannel", "--proxy-mode", "nftables"))
	s, err := loadState(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	c.runProbes(s)
	c.podToPod(s)
	c.service(s, c.pods())
	if out := c.run("exec", "--node", "node-1", "--", "ip", "route"); !strings.Contains(out, "dev flannel.1") {
		t.Errorf("pods of other nodes are not reached by vxlan:\n%s", out)
	}
	c.run("down")
	if left := c.traces(); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
}

// TestDownRemovesAnInterruptedUp kills `up` in the middle, and then the hub, the one process that ends with no machine.
func TestDownRemovesAnInterruptedUp(t *testing.T) {
	need.Long(t, "it starts a whole cluster")
	c := newTestCluster(t, "selftest-kill")
	cmd := c.command("up")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	for b := make([]byte, 4096); !strings.Contains(seen.String(), "node-1 started"); {
		n, err := out.Read(b)
		seen.Write(b[:n])
		if err != nil {
			t.Fatalf("up ended: %v\n%s", err, seen.String())
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s, err := loadState(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := (process{s.Hub}).kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.try("up"); err == nil {
		t.Error("a second up over the remains of the first succeeded")
	}
	c.run("down")
	if left := c.traces(); len(left) > 0 {
		t.Errorf("left:\n%s", strings.Join(left, "\n"))
	}
	c.run("down") // it may be repeated
}
