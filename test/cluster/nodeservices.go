// SPDX-License-Identifier: Apache-2.0

package main

import "path/filepath"

// nodeServices returns the services of a node.
func nodeServices(p plan, n nodePlan, bin string) []service {
	s := func(name string, args ...string) service { return nodeService(p, n, bin, name, args...) }
	all := []service{
		s(containerdService, "--config=/etc/containerd/config.toml", "--log-level=warn"),
		s(kubeletService, "--config=/etc/kubernetes/kubelet.json", "--kubeconfig=/etc/kubernetes/kubelet.conf",
			"--hostname-override="+n.Name, "--node-ip="+n.IP.String(), "--root-dir=/var/lib/kubelet",
			"--housekeeping-interval=30s", "--v=1"),
		// Flags instead of a file, which each kube-proxy would watch: see checkInotify. The limits of conntrack belong to the
		// whole host and are not changed.
		s(proxyService, "--kubeconfig="+filepath.Join(p.Dir, "kube-proxy.conf"), "--proxy-mode="+p.ProxyMode,
			"--cluster-cidr="+p.Pods.String(), "--hostname-override="+n.Name,
			"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0s",
			"--conntrack-tcp-timeout-close-wait=0s", "--healthz-bind-address=0.0.0.0:10256",
			"--metrics-bind-address=127.0.0.1:10249", "--v=1"),
	}
	if p.CNI == cniFlannel {
		all = append(all, s(flannelService, "--kubeconfig="+filepath.Join(p.Dir, "flannel.conf"), "--node="+n.Name,
			"--iface="+nodeInterface, "--net-conf=/etc/kube-flannel/net-conf.json"))
	}
	if p.CNI == cniCilium {
		all = append(all, ciliumAgent(p, n, bin))
	}
	return all
}

// proxyCleanup returns the program that removes the rules of a kube-proxy of either mode.
func proxyCleanup(p plan, n nodePlan, bin string) service {
	return service{Name: "kube-proxy-cleanup", Argv: []string{filepath.Join(bin, "kube-proxy"), "--cleanup"},
		Env: programEnv(bin),
		Log: filepath.Join(p.machineDir(n.Name), "log", "kube-proxy.log")}
}
