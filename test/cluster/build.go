// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Versions of what is built. Each must be the one in the go.mod of its folder below modules: checkVersions sees to it.
const (
	kubernetesVersion = "v1.34.4"
	etcdVersion       = "v3.6.4"
	containerdVersion = "v2.4.2"
	corednsVersion    = "v1.14.6"
	cniVersion        = "v1.9.1"
	flannelVersion    = "v0.28.4"
	metricsVersion    = "v0.9.0"
)

const ldflagsKubernetes = "-X k8s.io/component-base/version.gitVersion=" + kubernetesVersion +
	" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34" +
	" -X k8s.io/component-base/version.gitTreeState=clean" +
	" -X k8s.io/client-go/pkg/version.gitVersion=" + kubernetesVersion

// A target is one program: the package it is built from, and the module below modules that pins it.
type target struct {
	module, pkg string
	name        string // the file; empty: the last part of the package
	ldflags     string
	cni         string // the pod network that needs it; empty: every cluster does
}

func (t target) file() string {
	if t.name != "" {
		return t.name
	}
	return filepath.Base(t.pkg)
}

// targets is what clusters need, in the order in which it is built.
func targets() []target {
	var all []target
	for _, c := range []string{"kube-apiserver", "kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl"} {
		all = append(all, target{module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/" + c, ldflags: ldflagsKubernetes})
	}
	all = append(all, target{module: "kubernetes", pkg: "go.etcd.io/etcd/server/v3", name: "etcd"})
	for _, c := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		all = append(all, target{module: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/" + c,
			ldflags: "-X github.com/containerd/containerd/v2/version.Version=" + containerdVersion})
	}
	for _, c := range []string{"main/bridge", "main/loopback", "ipam/host-local", "meta/portmap"} {
		all = append(all, target{module: "cni", pkg: "github.com/containernetworking/plugins/plugins/" + c,
			name: "cni/" + filepath.Base(c)})
	}
	return append(all, target{module: "coredns", pkg: ".", name: "coredns"}, target{module: "flannel", pkg: ".", name: "flanneld", cni: cniFlannel},
		target{module: "metrics-server", pkg: "sigs.k8s.io/metrics-server/cmd/metrics-server"})
}

// tags keep out what needs C libraries or is of no use here.
const tags = "no_btrfs no_devmapper no_zfs no_aufs"

// findSource returns this program's source folder: the working folder of `go run -C test/cluster .`.
func findSource() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "modules", "kubernetes", "go.mod")); err != nil {
		return "", fmt.Errorf("%s does not hold the sources of the cluster: run `go run -C test/cluster .` in the repository", dir)
	}
	return dir, nil
}

// binDir returns the folder that holds what is built from the sources as they are now.
func binDir(source string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, tags, targets())
	var files []string
	for _, pattern := range []string{"modules/*/go.mod", "modules/*/*.go", "pause/pause.c"} {
		found, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil {
			return "", err
		}
		files = append(files, found...)
	}
	contents, err := readAll(files...)
	if err != nil {
		return "", err
	}
	for _, b := range contents {
		h.Write(b)
	}
	return filepath.Join(cache, "wangell", "cluster", kubernetesVersion+"-"+hex.EncodeToString(h.Sum(nil))[:12]), nil
}

// checkVersions fails if a go.mod asks for another version than the constants tell.
func checkVersions(source string) error {
	for _, want := range []struct{ module, line string }{
		{"kubernetes", "k8s.io/kubernetes " + kubernetesVersion},
		{"kubernetes", "go.etcd.io/etcd/server/v3 " + etcdVersion},
		{"containerd", "github.com/containerd/containerd/v2 " + containerdVersion},
		{"coredns", "github.com/coredns/coredns " + corednsVersion},
		{"cni", "github.com/containernetworking/plugins " + cniVersion},
		{"flannel", "github.com/flannel-io/flannel " + flannelVersion},
		{"metrics-server", "sigs.k8s.io/metrics-server " + metricsVersion},
	} {
		file := filepath.Join(source, "modules", want.module, "go.mod")
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if !strings.Contains(string(b), want.line) {
			return fmt.Errorf("%s does not require %s: bring build.go and it in line", file, want.line)
		}
	}
	return nil
}

// build builds every program that a cluster with a pod network needs and the folder does not hold yet, one after the
// other, and returns the folder.
func build(ctx context.Context, source, cni string, out io.Writer) (string, error) {
	if err := checkVersions(source); err != nil {
		return "", err
	}
	bin, err := binDir(source)
	if err != nil {
		return "", err
	}
	if err := checkDir(bin); err != nil && !strings.Contains(err.Error(), "bytes") {
		return "", fmt.Errorf("XDG_CACHE_HOME: %w", err)
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(bin) // who comes while another builds takes what that one made
	if err != nil {
		return "", fmt.Errorf("build: %w", err)
	}
	defer unlock()
	missing := slices.DeleteFunc(targets(), func(t target) bool {
		return t.cni != "" && t.cni != cni || exists(filepath.Join(bin, t.file()))
	})
	begin := time.Now()
	for i, t := range missing {
		file := filepath.Join(bin, t.file())
		fmt.Fprintf(out, "build %2d/%d %-24s ", i+1, len(missing), filepath.Base(file))
		start := time.Now()
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-buildvcs=false", "-tags", tags,
			"-ldflags", "-s -w "+t.ldflags, "-o", file+".new", t.pkg)
		cmd.Dir = filepath.Join(source, "modules", t.module)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if err := finish(cmd, file); err != nil {
			return "", err
		}
		fmt.Fprintf(out, "%5.1f s\n", time.Since(start).Seconds())
	}
	pause := filepath.Join(bin, "pause")
	if !exists(pause) {
		cc := "cc"
		if _, err := exec.LookPath(cc); err != nil {
			cc = "clang-19"
		}
		cmd := exec.CommandContext(ctx, cc, "-Os", "-s", "-static", "-o", pause+".new", filepath.Join(source, "pause", "pause.c"))
		if err := finish(cmd, pause); err != nil {
			return "", err
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(out, "built %d programs in %.0f s: %s\n", len(missing), time.Since(begin).Seconds(), bin)
	}
	return bin, nil
}

// finish runs a compiler and puts what it made in place under its name, whole or not at all.
func finish(cmd *exec.Cmd, file string) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", filepath.Base(file), err, out)
	}
	return os.Rename(file+".new", file)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

// packages maps the programs that come from Debian to the packages that have them.
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
