// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/md5"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/test/testutil/clusterfile"
)

// Names of the services of a node, in the order of their start.
const (
	containerdService = "containerd"
	kubeletService    = "kubelet"
	proxyService      = "kube-proxy"
	flannelService    = "flanneld"
	ciliumService     = "cilium-agent"
)

// defaultSnapshotter is that of containerd itself.
const defaultSnapshotter = "overlayfs"

// containerdSocket is where containerd listens, as seen in the node.
const containerdSocket = "/run/containerd/containerd.sock"

// nodeService is a program of the node that is called like its service.
func nodeService(p plan, n nodePlan, bin, name string, args ...string) service {
	path := bin
	if p.Erofs.File != "" { // containerd runs it
		path += ":" + filepath.Dir(p.Erofs.File)
	}
	return service{Name: name, Argv: append([]string{filepath.Join(bin, name)}, args...), Env: programEnv(path),
		Log: filepath.Join(p.machineDir(n.Name), "log", name+".log")}
}

// writeNodeFiles writes the configuration of a node into the upper layer of its /etc. It must not be called while the
// node runs.
func writeNodeFiles(p plan, n nodePlan) error {
	etc := filepath.Join(p.machineDir(n.Name), "etc")
	pki, err := readAll(filepath.Join(p.Dir, "pki", "ca.crt"), filepath.Join(p.Dir, "pki", n.Name+".crt"),
		filepath.Join(p.Dir, "pki", n.Name+".key"), filepath.Join(p.Dir, n.Name+".conf"))
	if err != nil {
		return err
	}
	mirror := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", "http://"+registryOnLAN(p))
	files := map[string][]byte{
		"kubernetes/pki/ca.crt":      pki[0],
		"kubernetes/pki/kubelet.crt": pki[1],
		"kubernetes/pki/kubelet.key": pki[2],
		"kubernetes/kubelet.conf":    pki[3],
		"hostname":                   []byte(n.Name + "\n"),
		"machine-id":                 fmt.Appendf(nil, "%x\n", md5.Sum([]byte(p.Name+n.Name))),
		"hosts":                      fmt.Appendf(nil, "127.0.0.1 localhost\n%s %s\n", n.IP, n.Name),
		// Names outside of the cluster cannot be resolved: no name server of the host is used.
		"kubernetes/resolv.conf": []byte("# no name server\n"),
		"containerd/config.toml": []byte(containerdConfig(p.Erofs)),
		// Every registry is redirected to the local one. Nothing is pulled from outside, and a missing image fails at once.
		"containerd/certs.d/_default/hosts.toml": []byte(mirror),
		"containerd/certs.d/" + registryName + "/hosts.toml": []byte(fmt.Sprintf("server = %q\n",
			"http://"+registryOnLAN(p)) + mirror),
		"containerd/certs.d/registry.loutres.me/hosts.toml": []byte(mirror),
	}
	mtu := 1500
	if p.CNI == cniFlannel {
		mtu = 1450 // vxlan's headers take 50 bytes
		files["kube-flannel/net-conf.json"] = fmt.Appendf(nil, `{"Network": %q, "Backend": {"Type": "vxlan"}}`+"\n", p.Pods)
	}
	if p.CNI != cniCilium { // whose agent writes its own
		files["cni/net.d/10-bridge.conflist"] = []byte(bridgeConfig(n, mtu))
	}
	for name, b := range files {
		mode := os.FileMode(0o644)
		if strings.HasPrefix(name, "kubernetes/") {
			mode = 0o600 // keys
		}
		if err := writeFile(filepath.Join(etc, name), b, mode); err != nil {
			return err
		}
	}
	return writeJSON(filepath.Join(etc, "kubernetes/kubelet.json"), kubeletConfig(p, n))
}

// containerdConfig is the configuration of containerd. restrict_oom_score_adj is for machines where root lacks
// CAP_SYS_RESOURCE, without which runc exits with "can't get final child's PID".
func containerdConfig(maker erofs.Maker) string {
	snapshotter, differ, more := defaultSnapshotter, "walking", ""
	if maker.File != "" {
		snapshotter, differ, more = erofs.Snapshotter, erofs.Snapshotter, maker.Config()
	}
	return `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "` + containerdSocket + `"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "` + snapshotter + `"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "` + registryName + `/pause:1"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "runc"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.wangell-lazy]
      runtime_type = "io.containerd.runc.v2"
      snapshotter = "wangell-lazy"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.wangell-lazy.options]
        BinaryName = "runc"
        SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"

# Lazy pulling, as docs/images/lazy-kubernetes.md says.
[proxy_plugins.wangell-lazy]
  type = "snapshot"
  address = "/run/wangell-lazy/lazy.sock"
  [proxy_plugins.wangell-lazy.exports]
    root = "/var/lib/wangell-lazy"
    enable_remote_snapshot_annotations = "true"

[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "` + snapshotter + `"
  differ = "` + differ + `"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux"
  snapshotter = "wangell-lazy"
  differ = "walking"
` + more
}

// bridgeConfig is the CNI configuration of a node: its pods are on one bridge, and routes lead to the pods of other
// nodes. flannel's plugin delegates to the same configuration.
func bridgeConfig(n nodePlan, mtu int) string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0", "name": "cluster",
  "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false, "mtu": %d,
     "ipam": {"type": "host-local", "dataDir": "/var/lib/cni/networks", "ranges": [[{"subnet": %q}]],
              "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, mtu, n.Pods)
}

// kubeletConfig is a node's KubeletConfiguration.
func kubeletConfig(p plan, n nodePlan) map[string]any {
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address":            n.IP.String(),
		"healthzBindAddress": "127.0.0.1",
		"tlsCertFile":        "/etc/kubernetes/pki/kubelet.crt", "tlsPrivateKeyFile": "/etc/kubernetes/pki/kubelet.key",
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true}},
		"authorization":            map[string]any{"mode": "Webhook"},
		"clusterDomain":            "cluster.local",
		"clusterDNS":               []string{p.DNSIP.String()},
		"resolvConf":               "/etc/kubernetes/resolv.conf",
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		// The root of the node's cgroup namespace. Kubelets that share a kernel need different ones, or they remove each
		// other's pods.
		"cgroupRoot":      "/",
		"cgroupDriver":    "cgroupfs",
		"failCgroupV1":    false,
		"failSwapOn":      false,
		"volumePluginDir": "/var/lib/kubelet/volumeplugins",
		"evictionHard": map[string]string{"memory.available": "64Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%",
			"imagefs.available": "1%", "imagefs.inodesFree": "1%"},
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		// The lease is renewed every 2 s, so that a killed node is noticed within 10 s.
		"nodeLeaseDurationSeconds": 8,
		"serializeImagePulls":      false,
		"enableProfilingHandler":   false,
	}
}

// refreshNode looks up the process ids of a node's services, which change when a service is started again.
func refreshNode(ctx context.Context, n *clusterfile.Node) error {
	pids, err := machineServices(ctx, n.Dir)
	if err != nil {
		return err
	}
	here, err := hostPids(n.HolderPid)
	if err != nil {
		return err
	}
	n.ContainerdPid, n.KubeletPid = here[pids[containerdService]], here[pids[kubeletService]]
	n.ProxyPid = here[pids[proxyService]]
	n.ContainerdSocket = fmt.Sprintf("/proc/%d/root%s", n.HolderPid, containerdSocket)
	return nil
}
