// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// with starts a pod of a changed service, calls check with it, and stops it.
func with(t *testing.T, r *Runtime, name string, change func(*v1alpha1.WangellServiceSpec),
	check func(runtime.Pod, runtimetest.Report)) {
	t.Helper()
	s := runtimetest.Service(name)
	change(&s.Spec)
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	check(p, runtimetest.Look(t, p))
	if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
		t.Fatal(err)
	}
}

func TestContainerIsSetUpAsTheManifestSays(t *testing.T) {
	r := startWithProbe(t, unready(t))
	// containerd's default capabilities.
	const defaultCaps = "00000000a80425fb"
	with(t, r, "plain", func(*v1alpha1.WangellServiceSpec) {}, func(p runtime.Pod, got runtimetest.Report) {
		if got.UID != 0 || got.GID != 0 || got.Dir != "/work" || got.Hostname != "plain" || got.PID != 1 {
			t.Errorf("%+v", got)
		}
		if !slices.Equal(got.Args, []string{"/program", "default", "arguments"}) ||
			!slices.Contains(got.Env, "FROM_IMAGE=yes") || !slices.Contains(got.Env, "HOSTNAME=plain") {
			t.Errorf("args %q, env %q", got.Args, got.Env)
		}
		if got.CapEff != defaultCaps || got.Seccomp != "2" || got.NoNewPrivs != "0" {
			t.Errorf("capabilities %s, seccomp %s, no new privileges %s", got.CapEff, got.Seccomp, got.NoNewPrivs)
		}
		if !strings.Contains(got.Hosts, p.Addr.String()+"\tplain\n") || !strings.Contains(got.Hosts, "localhost") ||
			got.Resolv != string(resolvConf()) {
			t.Errorf("hosts %q, resolv.conf %q", got.Hosts, got.Resolv)
		}
		if !slices.Equal(got.Links, []string{"lo", "eth0"}) ||
			!slices.Equal(got.Addresses, []string{"127.0.0.1/8", "::1/128", p.Addr.String() + "/32"}) {
			t.Errorf("links %q, addresses %q", got.Links, got.Addresses)
		}
		if got.Files < 1024 || got.Files > openFiles {
			t.Errorf("limit of open files %d", got.Files)
		}
		for _, line := range []string{" /proc/keys ", " /sys/firmware ", " /proc/sys "} {
			if !strings.Contains(got.Mounts, line) {
				t.Errorf("%s is not masked or read-only", line)
			}
		}
		if strings.Contains(got.Mounts, " /run tmpfs") {
			t.Error("the image's /run is hidden")
		}
	})
	with(t, r, "changed", func(s *v1alpha1.WangellServiceSpec) {
		s.Command, s.Args, s.WorkingDir = []string{"/program"}, []string{"mine"}, "/etc"
		s.Env = []corev1.EnvVar{{Name: "FROM_IMAGE", Value: "no"}}
		s.SecurityContext = &corev1.SecurityContext{
			RunAsUser: ptr(int64(1234)), AllowPrivilegeEscalation: ptr(false), ReadOnlyRootFilesystem: ptr(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
		}
	}, func(p runtime.Pod, got runtimetest.Report) {
		// The groups come from the image's /etc/passwd and /etc/group.
		if got.UID != 1234 || got.GID != 2345 || !slices.Contains(got.Groups, 3456) || got.Dir != "/etc" {
			t.Errorf("%+v", got)
		}
		if !slices.Equal(got.Args, []string{"/program", "mine"}) || !slices.Contains(got.Env, "FROM_IMAGE=no") ||
			slices.Contains(got.Env, "FROM_IMAGE=yes") {
			t.Errorf("args %q, env %q", got.Args, got.Env)
		}
		if got.NoNewPrivs != "1" {
			t.Errorf("no new privileges %s", got.NoNewPrivs)
		}
		if code, text := runtimetest.Ask(t, p, "/write", url.Values{"f": {"/work/new"}}); code == http.StatusOK ||
			!strings.Contains(text, "read-only") {
			t.Errorf("writing to a read-only root: %d %q", code, text)
		}
	})
	with(t, r, "read-only", func(s *v1alpha1.WangellServiceSpec) {
		s.Layer = &v1alpha1.Layer{Writable: ptr(false), SizeLimit: ptr(resource.MustParse("2Mi"))}
		s.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(1234))}
		s.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "below",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		s.VolumeMounts = []corev1.VolumeMount{{Name: "below", MountPath: "/run/below"}}
	}, func(p runtime.Pod, got runtimetest.Report) {
		for file, writable := range map[string]bool{
			"/tmp/new": true, "/var/tmp/new": true, "/run/below/new": true, "/work/new": false, "/new": false,
		} {
			code, text := runtimetest.Ask(t, p, "/write", url.Values{"f": {file}, "t": {"x"}})
			if (code == http.StatusOK) != writable || !writable && !strings.Contains(text, "read-only") {
				t.Errorf("%s: %d %q", file, code, text)
			}
		}
		if !strings.Contains(got.Mounts, "size=2048k") {
			t.Errorf("the folders in memory have another size: %s", got.Mounts)
		}
	})
	with(t, r, "privileged", func(s *v1alpha1.WangellServiceSpec) {
		s.SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
	}, func(_ runtime.Pod, got runtimetest.Report) {
		if got.CapEff <= defaultCaps || got.Seccomp != "0" || strings.Contains(got.Mounts, " /proc/keys ") {
			t.Errorf("capabilities %s, seccomp %s, mounts %s", got.CapEff, got.Seccomp, got.Mounts)
		}
	})
	with(t, r, "group", func(s *v1alpha1.WangellServiceSpec) {
		s.SecurityContext = &corev1.SecurityContext{RunAsGroup: ptr(int64(77))}
	}, func(_ runtime.Pod, got runtimetest.Report) {
		if got.UID != 0 || got.GID != 77 {
			t.Errorf("user %d, group %d", got.UID, got.GID)
		}
	})
}

func TestSecretsReachTheContainerAndNobodyElse(t *testing.T) {
	cfg := unready(t)
	// Open to all, as /run and /var/lib are.
	for _, dir := range []string{filepath.Dir(cfg.StateDir), cfg.StateDir, cfg.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := startWithProbe(t, cfg)
	const value = "s3s4me-in-a-test"
	s := runtimetest.Service("secretive")
	s.Spec.Config = new(v1alpha1.ConfigData)
	s.Spec.Config.Add(v1alpha1.KindSecret, "db", map[string][]byte{"pw": []byte(value), "other": []byte("x")})
	s.Spec.Args = []string{"--password=$(DB_pw)"}
	s.Spec.EnvFrom = []corev1.EnvFromSource{{Prefix: "DB_", SecretRef: &corev1.SecretEnvSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "db"}}}}
	s.Spec.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "files", VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: "db", DefaultMode: ptr(int32(0o444))}}})
	s.Spec.VolumeMounts = []corev1.VolumeMount{
		{Name: "files", MountPath: "/secrets"}, {Name: "files", MountPath: "/one", SubPath: "pw"},
	}
	s.Spec.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(1234))}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	got := runtimetest.Look(t, p)
	if !slices.Contains(got.Env, "DB_pw="+value) || !slices.Contains(got.Args, "--password="+value) {
		t.Errorf("env %q, args %q", got.Env, got.Args)
	}
	for _, file := range []string{"/secrets/pw", "/one"} {
		if code, text := runtimetest.Ask(t, p, "/read", url.Values{"f": {file}}); code != http.StatusOK || text != value {
			t.Errorf("%s: %d %q", file, code, text)
		}
	}
	if code, text := runtimetest.Ask(t, p, "/write", url.Values{"f": {"/secrets/new"}}); code == http.StatusOK {
		t.Errorf("a secret can be written: %q", text)
	}
	found, _ := exec.Command("grep", "-rl", "-D", "skip", value, r.cfg.StateDir, r.cfg.RunDir).Output()
	if !strings.Contains(string(found), "/files/files/pw") {
		t.Fatalf("root finds the secret in %q", found)
	}
	for _, file := range strings.Fields(string(found)) {
		cat := exec.Command("cat", file)
		cat.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if cat.Run() == nil {
			t.Errorf("any user can read the secret in %s", file)
		}
	}
	if err := r.Stop(t.Context(), p.ID, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if left, err := exec.Command("grep", "-rl", "-D", "skip", value, r.cfg.RunDir).Output(); len(left) > 0 {
		t.Errorf("the secret is still in %s (%v)", left, err)
	}
}

func TestResourcesReachTheCgroup(t *testing.T) {
	r := startWithProbe(t, unready(t))
	with(t, r, "limited", func(s *v1alpha1.WangellServiceSpec) {
		s.Resources.Limits = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
		}
	}, func(p runtime.Pod, got runtimetest.Report) {
		want := map[string]string{"cpu/cpu.cfs_quota_us": "50000", "memory/memory.limit_in_bytes": "67108864"}
		if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
			want = map[string]string{"cpu.max": "50000 100000", "memory.max": "67108864"}
		}
		for file, value := range want {
			parts := strings.Split(file, "/")
			path := filepath.Join(cgroupRoot, strings.Join(parts[:len(parts)-1], "/"), r.cfg.cgroup(), p.ID, parts[len(parts)-1])
			if text, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(text)) != value {
				t.Errorf("%s: %q, %v; want %s", path, text, err, value)
			}
		}
		if !strings.Contains(got.Mounts, " /sys/fs/cgroup") {
			t.Error("a program with limits cannot see them")
		}
	})
}

func TestVolumesAreMounted(t *testing.T) {
	r := startWithProbe(t, unready(t))
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "file"), []byte("from the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	var empty string
	with(t, r, "volumes", func(s *v1alpha1.WangellServiceSpec) {
		s.SecurityContext = &corev1.SecurityContext{RunAsUser: ptr(int64(1234))}
		s.Volumes = v1alpha1.VolumesOf(
			corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: host}}},
			corev1.Volume{Name: "new", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
				Path: host + "/made", Type: ptr(corev1.HostPathDirectoryOrCreate)}}},
			corev1.Volume{Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			corev1.Volume{Name: "memory", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory,
					SizeLimit: ptr(resource.MustParse("1Mi"))}}},
		)
		s.VolumeMounts = []corev1.VolumeMount{
			{Name: "host", MountPath: "/host", ReadOnly: true}, {Name: "new", MountPath: "/new"},
			{Name: "empty", MountPath: "/empty"}, {Name: "memory", MountPath: "/memory"},
		}
	}, func(p runtime.Pod, got runtimetest.Report) {
		if code, text := runtimetest.Ask(t, p, "/read", url.Values{"f": {"/host/file"}}); code != http.StatusOK ||
			text != "from the host" {
			t.Errorf("reading from the host: %d %q", code, text)
		}
		if code, text := runtimetest.Ask(t, p, "/write", url.Values{"f": {"/host/x"}}); code == http.StatusOK ||
			!strings.Contains(text, "read-only") {
			t.Errorf("writing to a read-only volume: %d %q", code, text)
		}
		for _, f := range []string{"/empty/x", "/memory/x"} {
			if code, text := runtimetest.Ask(t, p, "/write", url.Values{"f": {f}, "t": {"kept"}}); code != http.StatusOK {
				t.Errorf("writing %s: %d %q", f, code, text)
			}
		}
		empty = filepath.Join(r.cfg.StateDir, "emptydirs", r.cfg.Instance, p.ID, "empty")
		if text, err := os.ReadFile(filepath.Join(empty, "x")); err != nil || string(text) != "kept" {
			t.Errorf("emptyDir has %q, %v", text, err)
		}
		if l, err := r.Layer(t.Context(), p.ID, "empty"); err != nil || l.EmptyDirs["empty"] == 0 {
			t.Errorf("usage of the emptyDir: %+v, %v", l, err)
		}
		if !strings.Contains(got.Mounts, "tmpfs /memory tmpfs rw,nosuid,nodev,relatime,size=1024k") {
			t.Errorf("mounts %s", got.Mounts)
		}
	})
	if _, err := os.Stat(filepath.Dir(empty)); err == nil {
		t.Error("the emptyDir is left")
	}
	if _, err := os.Stat(filepath.Join(host, "made")); err != nil {
		t.Error(err)
	}
}

func TestUnusableVolumesFailTheStart(t *testing.T) {
	r := startWithProbe(t, unready(t))
	before := podInventory(t, r)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, volume := range map[string]corev1.VolumeSource{
		"does not exist: create it": {HostPath: &corev1.HostPathVolumeSource{Path: file + "-none"}},
		"is not a Directory": {HostPath: &corev1.HostPathVolumeSource{Path: file,
			Type: ptr(corev1.HostPathDirectory)}},
		"is not a Socket": {HostPath: &corev1.HostPathVolumeSource{Path: file,
			Type: ptr(corev1.HostPathSocket)}},
		"use persistent, hostPath, emptyDir, secret or configMap": {NFS: &corev1.NFSVolumeSource{}},
	} {
		s := runtimetest.Service("bad-volume")
		s.Spec.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "data", VolumeSource: volume})
		s.Spec.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		_, err := r.Start(t.Context(), s, runtime.StartHooks{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `volume "data"`) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if after := podInventory(t, r); !slices.Equal(before, after) {
		t.Errorf("left behind: %q", after)
	}
}

func ptr[T any](v T) *T { return &v }

// Each pod locks a file of the volume and exits with 3 if another one holds the lock. They ignore SIGTERM, so that each
// stop takes a while, and the next start is asked for meanwhile.
func TestPodsThatWriteOneVolumeNeverRunAtTheSameTime(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	folder := t.TempDir()
	s := runtimetest.Service("writer", "LOCK", "/data/lock", "IGNORE_TERM", "yes")
	s.Spec.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: folder},
	}})
	s.Spec.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		runtimetest.Ask(t, p, "/write", url.Values{"f": {"/data/last"}, "t": {p.ID}})
		refused := fmt.Sprintf("pod %s may still write volume %q: context deadline exceeded", p.ID, "data")
		for within := 100 * time.Millisecond; ; within *= 2 { // until it is long enough to come to the wait
			ctx, cancel := context.WithTimeout(t.Context(), within)
			_, err := r.Start(ctx, s, runtime.StartHooks{})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || within > time.Minute {
				t.Fatalf("a second pod: %v", err)
			}
			if strings.HasSuffix(err.Error(), refused) {
				break
			}
		}
		var next runtime.Pod
		var starts sync.WaitGroup
		starts.Go(func() { next, err = r.Start(t.Context(), s, runtime.StartHooks{}) })
		if err := r.Stop(t.Context(), p.ID, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if starts.Wait(); err != nil {
			t.Fatal(err)
		}
		if code, text := runtimetest.Ask(t, next, "/read", url.Values{"f": {"/data/last"}}); code != http.StatusOK ||
			text != p.ID {
			t.Fatalf("the next pod reads %d %q", code, text)
		}
		p = next
	}
	if _, err := os.Stat(filepath.Join(folder, "conflict")); err == nil {
		t.Error("two pods ran at the same time")
	}
}
