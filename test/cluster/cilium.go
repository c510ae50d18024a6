// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"path/filepath"
)

//go:embed cilium.yaml
var ciliumManifest string

// pluginsDir returns the folder whose folder cni has the CNI plugins.
func pluginsDir(p plan, bin string) string {
	if p.CNI == cniCilium {
		return ciliumDir(bin)
	}
	return bin
}

// ciliumAgent is Cilium's agent on a node, as its chart configures it by default: VXLAN between nodes, kube-proxy for
// Services, iptables to masquerade. Features that need other programs are left out: Envoy, Hubble, health endpoints.
func ciliumAgent(p plan, n nodePlan, bin string) service {
	dir := ciliumDir(bin)
	s := nodeService(p, n, dir, ciliumService,
		"--k8s-kubeconfig-path="+filepath.Join(p.Dir, "cilium.conf"), "--lib-dir="+dir,
		"--routing-mode=tunnel", "--tunnel-protocol=vxlan", "--ipam=kubernetes", "--k8s-require-ipv4-pod-cidr",
		"--enable-ipv6=false", "--enable-ipv4-masquerade",
		// Pods keep their addresses on the way to service addresses, which is not through this interface.
		"--egress-masquerade-interfaces="+nodeInterface, "--kube-proxy-replacement=false", "--bpf-lb-sock=false",
		"--write-cni-conf-when-ready=/etc/cni/net.d/05-cilium.conflist", "--cgroup-root=/run/cilium/cgroupv2",
		"--identity-allocation-mode=crd", "--enable-l7-proxy=false", "--enable-hubble=false",
		"--enable-health-checking=false", "--enable-endpoint-health-checking=false", "--enable-gops=false",
	)
	s.Env = append(programEnv(filepath.Join(dir, "tools")+":"+dir), "K8S_NODE_NAME="+n.Name,
		"CILIUM_K8S_NAMESPACE=kube-system")
	return s
}

// installCilium creates the kinds of Cilium's objects, and lets its agents use them.
func installCilium(ctx context.Context, s *state) error {
	for _, version := range []string{"v2", "v2alpha1"} {
		// Some are too large for the annotation of a client-side apply.
		_, err := kubectl(ctx, s, "", "apply", "--server-side", "-f", filepath.Join(ciliumDir(s.Bin), "crds", version))
		if err != nil {
			return err
		}
	}
	return apply(ctx, s, ciliumManifest)
}
