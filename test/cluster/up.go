// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"wangell.loutres.me/test/testutil/clusterfile"
)

//go:embed coredns.yaml
var corednsManifest string

//go:embed flannel.yaml
var flannelManifest string

// up starts a cluster and returns once every node is Ready and its DNS answers.
func up(ctx context.Context, p plan, bin string, out io.Writer) error {
	begin := time.Now()
	say := func(format string, args ...any) {
		fmt.Fprintf(out, "%6.1f s  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes namespaces and cgroups")
	}
	if missing := missingPackages(); len(missing) > 0 {
		return fmt.Errorf("programs are missing: apt-get install --no-install-recommends %s", strings.Join(missing, " "))
	}
	if err := checkInotify(len(p.Nodes)); err != nil {
		return err
	}
	if exists(clusterfile.Path(p.Dir)) {
		return fmt.Errorf("%s holds a cluster: run `down --dir %s` first", p.Dir, p.Dir)
	}
	left, err := leftOvers(p.Name)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("cluster %s runs or was left half removed (%s): run `down --name %s`, with its --dir", p.Name,
			strings.Join(left, " "), p.Name)
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return err
	}
	unlock, err := lock(p.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	s := newState(p, bin)
	if err := s.save(); err != nil {
		return err
	}
	// The program is copied, as `go run` removes its own.
	program := filepath.Join(p.Dir, "cluster")
	if err := copyProgram(program); err != nil {
		return err
	}
	say("cluster %s: LAN %s, service addresses %s, pods %s, services %s", p.Name, p.LAN, p.VIPs, p.Pods, p.Services)
	if err := makePKI(p); err != nil {
		return err
	}
	if err := makeLAN(p); err != nil {
		return err
	}
	if err := joinLAN(p, "client", p.ClientIP); err != nil {
		return err
	}
	if err := joinLAN(p, controlMachine, p.ControlIP); err != nil {
		return err
	}
	if err := routePods(p, controlMachine); err != nil {
		return err
	}
	if err := startControlPlane(ctx, p, s, program); err != nil {
		return err
	}
	say("etcd, API server, controller manager, scheduler started; registry at %s", s.Registry.PushAddress)
	for _, image := range []struct{ program, ref string }{{"pause", "pause:1"}, {"coredns", "coredns:" + corednsVersion}} {
		img, err := programImage(filepath.Join(bin, image.program))
		if err != nil {
			return err
		}
		if err := push(ctx, img, s.Registry.PushAddress, registryName+"/"+image.ref); err != nil {
			return err
		}
	}
	server, err := s.apiServerHere()
	if err != nil {
		return err
	}
	if err := waitAPIServer(ctx, p, server); err != nil {
		return err
	}
	say("API server is ready")
	// Nodes are created before their kubelets start, so that each has the pod range of its number.
	if err := apply(ctx, s, nodeObjects(p)); err != nil {
		return err
	}
	switch p.CNI {
	case cniFlannel:
		err = apply(ctx, s, flannelManifest)
	case cniCilium:
		err = installCilium(ctx, s)
	}
	if err != nil {
		return err
	}
	for i := range s.Nodes {
		if err := startNode(ctx, p, s, p.Nodes[i].Name, program); err != nil {
			return err
		}
		say("%s started: %s, pods %s", p.Nodes[i].Name, p.Nodes[i].IP, p.Nodes[i].Pods)
	}
	manifest := strings.NewReplacer("IMAGE", registryName+"/coredns:"+corednsVersion, "DNSIP",
		p.DNSIP.String()).Replace(corednsManifest)
	if err := apply(ctx, s, manifest); err != nil {
		return err
	}
	for _, n := range p.Nodes {
		if err := waitNode(ctx, s, n.Name); err != nil {
			return err
		}
	}
	say("all nodes are Ready")
	for _, n := range p.Nodes {
		if err := waitDNS(ctx, p, n.Name); err != nil {
			return err
		}
	}
	say("DNS answers on every node")
	for i := range s.Nodes {
		if err := refreshNode(ctx, &s.Nodes[i]); err != nil {
			return err
		}
	}
	return s.save()
}

func copyProgram(to string) error {
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return writeFile(to, b, 0o755)
}

// startControlPlane starts the control plane's machine, its services and the hub.
func startControlPlane(ctx context.Context, p plan, s *state, program string) error {
	var err error
	var api string
	var hub process
	if hub, s.Registry.PushAddress, api, err = startHub(p, program); err != nil {
		return err
	}
	s.Hub = hub.Process
	if err := writeKubeconfig(p, "admin", "admin.conf", "https://"+api); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(p.Dir, auditPolicyFile), auditPolicy); err != nil {
		return err
	}
	dir := p.machineDir(controlMachine)
	first, err := startMachine(ctx, p, program, machineConfig{Name: controlMachine, Dir: dir,
		Cgroup: p.cgroup(controlMachine)})
	if err != nil {
		return err
	}
	s.ControlPlane.HolderPid = first.Pid
	if err := s.save(); err != nil {
		return err
	}
	for _, svc := range controlServices(p, s.Bin) {
		if err := startService(ctx, dir, svc); err != nil {
			return err
		}
		if svc.Name == apiServerService {
			// The other services exit at once without it.
			if err := waitAPIServer(ctx, p, "https://"+api); err != nil {
				return fmt.Errorf("%w: see %s", err, filepath.Join(dir, "log"))
			}
		}
	}
	return nil
}

// apiServerHere returns the API server's URL on the machine's loopback, from the kubeconfig.
func (s *state) apiServerHere() (string, error) {
	b, err := os.ReadFile(s.Kubeconfig)
	if err != nil {
		return "", err
	}
	var c struct {
		Clusters []struct {
			Cluster struct{ Server string }
		}
	}
	if err := json.Unmarshal(b, &c); err != nil || len(c.Clusters) != 1 {
		return "", fmt.Errorf("%s is not as it was written: %w", s.Kubeconfig, err)
	}
	return c.Clusters[0].Cluster.Server, nil
}

// startNode puts a node on the LAN and starts it.
func startNode(ctx context.Context, p plan, s *state, name, program string) error {
	n, err := p.node(name)
	if err != nil {
		return err
	}
	info, err := s.node(name)
	if err != nil {
		return err
	}
	if err := joinLAN(p, name, n.IP); err != nil {
		return err
	}
	if p.CNI == cniBridge {
		if err := routePods(p, name); err != nil {
			return err
		}
	}
	if err := prepareNodeNetwork(p, n); err != nil {
		return err
	}
	if err := writeNodeFiles(p, n); err != nil {
		return err
	}
	dir := p.machineDir(name)
	first, err := startMachine(ctx, p, program, machineConfig{Name: name, Dir: dir, Node: true,
		Cgroup: p.cgroup(name), CNIBin: filepath.Join(pluginsDir(p, s.Bin), "cni")})
	if err != nil {
		return err
	}
	for _, svc := range nodeServices(p, n, s.Bin) {
		if err := startService(ctx, dir, svc); err != nil {
			return err
		}
		if svc.Name != containerdService {
			continue
		}
		// kubelet exits at once without containerd.
		socket := fmt.Sprintf("/proc/%d/root%s", first.Pid, containerdSocket)
		err := poll(ctx, 20*time.Millisecond, "containerd on "+name, func() error { _, err := os.Stat(socket); return err })
		if err != nil {
			return fmt.Errorf("%w: see %s", err, svc.Log)
		}
	}
	info.Up, info.HolderPid = true, first.Pid
	if err := refreshNode(ctx, info); err != nil {
		return err
	}
	return s.save()
}

func nodeObjects(p plan) string {
	var b strings.Builder
	for _, n := range p.Nodes {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDR: %q, podCIDRs: [%q]}\n",
			n.Name, n.Pods, n.Pods)
	}
	return b.String()
}

// waitNode waits until a node is Ready.
func waitNode(ctx context.Context, s *state, node string) error {
	return poll(ctx, 200*time.Millisecond, node+" to be Ready", func() error {
		ready, err := kubectl(ctx, s, "", "get", "node", node, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")]}`)
		if err == nil && !strings.Contains(ready, `"status":"True"`) {
			err = fmt.Errorf("its condition: %s", ready)
		}
		return err
	})
}

// waitDNS waits until the cluster's DNS answers at its ClusterIP, from a node.
func waitDNS(ctx context.Context, p plan, node string) error {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (conn net.Conn,
		err error) {
		err = inNetns(p.netnsPath(node), func() error {
			var d net.Dialer
			conn, err = d.DialContext(ctx, "udp4", net.JoinHostPort(p.DNSIP.String(), "53"))
			return err
		})
		return conn, err
	}}
	return poll(ctx, 100*time.Millisecond, "DNS on "+node, func() error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		got, err := resolver.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
		if err == nil && (len(got) != 1 || got[0] != p.kubernetesIP().String()) {
			err = fmt.Errorf("answer %v instead of %s", got, p.kubernetesIP())
		}
		return err
	})
}
