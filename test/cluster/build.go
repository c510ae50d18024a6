// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// modules returns everything that clusters with a version of Kubernetes need, in the order in which it is built.
func modules(version string) []module {
	minor := strings.Split(version, ".")[1]
	kubernetes := module{name: kubernetesModule(version),
		ldflags: "-X k8s.io/component-base/version.gitVersion=" + version +
			" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=" + minor +
			" -X k8s.io/component-base/version.gitTreeState=clean -X k8s.io/client-go/pkg/version.gitVersion=" + version,
		programs: map[string]string{"go.etcd.io/etcd/server/v3": "etcd"}}
	for _, p := range []string{
		"kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl",
	} {
		kubernetes.programs["k8s.io/kubernetes/cmd/"+p] = p
	}
	return []module{
		kubernetes,
		{name: "containerd", ldflags: "-X github.com/containerd/containerd/v2/version.Version=" + containerdVersion,
			programs: map[string]string{
				"github.com/containerd/containerd/v2/cmd/containerd":              "containerd",
				"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2": "containerd-shim-runc-v2",
			}},
		{name: "cni", programs: map[string]string{
			"github.com/containernetworking/plugins/plugins/main/bridge":     "cni/bridge",
			"github.com/containernetworking/plugins/plugins/main/loopback":   "cni/loopback",
			"github.com/containernetworking/plugins/plugins/ipam/host-local": "cni/host-local",
			"github.com/containernetworking/plugins/plugins/meta/portmap":    "cni/portmap",
		}},
		{name: "coredns", programs: map[string]string{".": "coredns"}},
		{name: "flannel", cni: cniFlannel, programs: map[string]string{".": "flanneld"}},
		{name: "metrics-server", programs: map[string]string{
			"sigs.k8s.io/metrics-server/cmd/metrics-server": "metrics-server",
		}},
	}
}

// findSource returns the source folder of this program, which is the working folder of `go run -C test/cluster .`.
func findSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "modules", "kubernetes", "go.mod")); err != nil {
		return "", fmt.Errorf("%s does not hold the sources of the cluster: run `go run -C test/cluster .` in the repository",
			dir)
	}
	return dir, nil
}

// binDir returns the folder for programs that are built from the current sources. Its name has a hash of everything
// that they are built from. Other versions of Kubernetes are in a folder of their own, because tests take the newest
// program below the folder cluster.
func binDir(source, version string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, tags, modules(version))
	var files []string
	for _, pattern := range []string{"modules/*/go.mod", "modules/*/*.go", "pause/pause.c"} {
		found, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil {
			return "", err
		}
		files = append(files, found...)
	}
	// Its programs have a folder of their own, so that a change of it builds nothing else again.
	files = slices.DeleteFunc(files, func(f string) bool {
		name := filepath.Base(filepath.Dir(f))
		other := strings.HasPrefix(name, "kubernetes") && name != kubernetesModule(version)
		return other || f == ciliumGoMod(source)
	})
	contents, err := readAll(files...)
	if err != nil {
		return "", err
	}
	for _, b := range contents {
		h.Write(b)
	}
	folder := "cluster"
	if version != kubernetesVersion {
		folder = "cluster-versions"
	}
	return filepath.Join(cache, "wangell", folder, version+"-"+hex.EncodeToString(h.Sum(nil))[:12]), nil
}

// checkVersions fails if a go.mod requires another version than the constants, or there is none of a version of
// Kubernetes.
func checkVersions(source, kubernetes string) error {
	if etcdOf(kubernetes) == "" {
		return fmt.Errorf("--kubernetes %s: want %s or one of %s", kubernetes, kubernetesVersion,
			strings.Join(slices.Sorted(maps.Keys(otherEtcds)), ", "))
	}
	for _, want := range []struct{ module, line string }{
		{kubernetesModule(kubernetes), "k8s.io/kubernetes " + kubernetes},
		{kubernetesModule(kubernetes), "go.etcd.io/etcd/server/v3 " + etcdOf(kubernetes)},
		{"containerd", "github.com/containerd/containerd/v2 " + containerdVersion},
		{"coredns", "github.com/coredns/coredns " + corednsVersion},
		{"cni", "github.com/containernetworking/plugins " + cniVersion},
		{"flannel", "github.com/flannel-io/flannel " + flannelVersion},
		{"cilium", "github.com/cilium/cilium " + ciliumVersion},
		{"metrics-server", "sigs.k8s.io/metrics-server " + metricsVersion},
	} {
		file := filepath.Join(source, "modules", want.module, "go.mod")
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !strings.Contains(string(b), want.line) {
			return fmt.Errorf("%s does not require %s: correct one of build.go and go.mod", file, want.line)
		}
	}
	return nil
}

// build builds the programs that a cluster with a version of Kubernetes and a pod network needs and that the folder
// lacks, and returns the folder.
func build(ctx context.Context, source, version, cni string, out io.Writer) (string, error) {
	bin, err := buildCommon(ctx, source, version, cni, out)
	if err == nil && cni == cniCilium {
		err = buildCilium(ctx, source, bin, out)
	}
	return bin, err
}

// buildCommon builds all programs but Cilium's.
func buildCommon(ctx context.Context, source, version, cni string, out io.Writer) (string, error) {
	if err := checkVersions(source, version); err != nil {
		return "", err
	}
	bin, err := binDir(source, version)
	if err != nil {
		return "", err
	}
	if err := checkDir(bin); err != nil && !strings.Contains(err.Error(), "bytes") {
		return "", fmt.Errorf("XDG_CACHE_HOME: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(bin, "cni"), 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(bin) // a concurrent build waits, and finds the programs of this one
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	defer unlock()
	begin, built := time.Now(), 0
	for _, m := range modules(version) {
		if m.cni != "" && m.cni != cni {
			continue
		}
		n, err := buildModule(ctx, source, bin, m, out)
		if err != nil {
			return "", err
		}
		built += n
	}
	if err := buildPause(ctx, source, bin); err != nil {
		return "", err
	}
	if built > 0 {
		fmt.Fprintf(out, "built %d programs in %.0f s: %s\n", built, time.Since(begin).Seconds(), bin)
	}
	return bin, nil
}

// buildPause builds the program of the pause image, which is written in C.
func buildPause(ctx context.Context, source, bin string) error {
	pause := filepath.Join(bin, "pause")
	if exists(pause) {
		return nil
	}
	cc := "cc"
	if _, err := exec.LookPath(cc); err != nil {
		cc = "clang-19"
	}
	cmd := exec.CommandContext(ctx, cc, "-Os", "-s", "-static", "-o", pause+".new",
		filepath.Join(source, "pause", "pause.c"))
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build pause: %w\n%s", err, text)
	}
	return os.Rename(pause+".new", pause)
}

// packages maps the programs that come from Debian to their packages.
var packages = map[string]string{
	"runc": "runc", "iptables": "iptables", "nft": "nftables", "ip": "iproute2", "nsenter": "util-linux", "mount": "mount",
}

// missingPackages returns the Debian packages that a cluster needs and this machine lacks.
func missingPackages() []string {
	var missing []string
	for program, pkg := range packages {
		found := false
		for _, dir := range strings.Split(strings.TrimPrefix(programEnv("")[0], "PATH="), ":") {
			found = found || exists(filepath.Join(dir, program))
		}
		if !found {
			missing = append(missing, pkg)
		}
	}
	return missing
}
