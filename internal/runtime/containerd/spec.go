// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
)

const (
	cpuPeriod = 100000 // µs, the kernel's default
	// openFiles is the limit of open files. Servers need many; but some old programs close every possible descriptor when
	// they start, so there is a limit.
	openFiles = 65536
	// initPath is where a container with spec.init finds its first process, and waitPath where a container of a
	// prepared pod does.
	initPath = "/.wangell-init"
	waitPath = "/.wangell-wait"
)

// generateSpec builds the OCI runtime spec of a container from the image and the manifest. It starts from containerd's
// defaults: default capabilities, masked and read-only paths, no new privileges, and the default seccomp profile. The
// record c must name the snapshot, in which user names are looked up.
func (r *Runtime) generateSpec(ctx context.Context, s *v1alpha1.WangellService, info imageInfo,
	c *containers.Container, at home) (*specs.Spec, error) {
	security := s.Spec.SecurityContext
	if security == nil {
		security = &corev1.SecurityContext{}
	}
	volumes, err := r.volumeMounts(s, at.pod)
	if err != nil {
		return nil, err
	}
	// Those of the image come before those of the manifest, which may lie in them.
	mounts := slices.Concat(scratchMounts(&s.Spec), r.keptMounts(at.kept, at.container), volumes)
	env := s.Spec.Environment()
	args := arguments(s, info, env)
	if len(args) == 0 {
		return nil, fmt.Errorf("image %q has neither an entrypoint nor a command: set spec.command", s.Spec.Image)
	}
	if s.Spec.Init != nil && *s.Spec.Init {
		args, mounts = append([]string{initPath}, args...), append(mounts, bindProgram(initPath, r.cfg.initFile()))
	}
	if at.prepared {
		args, mounts = append([]string{waitPath}, args...), append(mounts, bindProgram(waitPath, r.cfg.waitFile()))
	}
	cwd := "/"
	for _, dir := range []string{info.config.WorkingDir, s.Spec.WorkingDir} {
		if dir != "" {
			cwd = dir
		}
	}
	opts := []oci.SpecOpts{
		oci.WithoutRunMount, // the image's own /run stays visible, as with Docker and Kubernetes
		oci.WithProcessArgs(args...),
		oci.WithProcessCwd(cwd),
		oci.WithHostname(hostname(v1alpha1.KeyOf(s))),
		oci.WithEnv(environment(s, info, env)),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: r.cfg.netnsLink(at.pod)}),
		oci.WithCgroup(at.cgroup),
		oci.WithMounts(append([]specs.Mount{
			r.bindFile(at.pod, "hosts"), r.bindFile(at.pod, "resolv.conf"),
		}, mounts...)),
		withOpenFiles,
		withResources(s.Spec.Resources),
	}
	if len(s.Spec.Resources.Limits) > 0 {
		// For programs that size themselves by their limits. Without limits it is left out, as it costs a wake one mount for
		// each controller.
		opts = append(opts, oci.WithMounts([]specs.Mount{{
			Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "noexec",
				"nodev"},
		}}))
	}
	opts = append(opts, userOpts(info.config.User, security)...)
	opts = append(opts, securityOpts(security)...)
	if s.Spec.ReadOnlyLayer() {
		opts = append(opts, oci.WithRootFSReadonly())
	}
	if info.architecture == goruntime.GOARCH {
		opts = append(opts, withNativeCalls)
	}
	ctx = namespaces.WithNamespace(ctx, r.cfg.Namespace)
	return oci.GenerateSpec(ctx, r.client, c, opts...)
}

// bindProgram returns the mount of a program of package podinit.
func bindProgram(path, file string) specs.Mount {
	return specs.Mount{
		Destination: path, Type: "bind", Source: file,
		Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev", "exec"},
	}
}

// withNativeCalls removes the CPU's other architectures (32-bit ones on 64-bit) from the seccomp profile: a process
// that makes a system call of another architecture is killed. That is stricter than Docker's profile and makes a wake
// faster, as libseccomp in runc takes about 10 ms for three architectures and 3 ms for one.
func withNativeCalls(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
	if p := s.Linux.Seccomp; p != nil && len(p.Architectures) > 1 {
		p.Architectures = p.Architectures[:1]
	}
	return nil
}

// arguments returns the program and its arguments, from the manifest, where $(NAME) stands for a variable, or from the
// image.
func arguments(s *v1alpha1.WangellService, info imageInfo, env []corev1.EnvVar) []string {
	command := v1alpha1.ExpandArguments(s.Spec.Command, env)
	args := v1alpha1.ExpandArguments(s.Spec.Args, env)
	switch {
	case len(command) > 0:
	case len(args) > 0:
		command = slices.Clone(info.config.Entrypoint)
	default:
		command, args = slices.Clone(info.config.Entrypoint), info.config.Cmd
	}
	return append(command, args...)
}

// environment returns PATH, the image's variables, HOSTNAME and the manifest's variables; later ones win.
func environment(s *v1alpha1.WangellService, info imageInfo, own []corev1.EnvVar) []string {
	env := append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, info.config.Env...)
	env = append(env, "HOSTNAME="+hostname(v1alpha1.KeyOf(s)))
	for _, e := range own {
		env = append(env, e.Name+"="+e.Value)
	}
	return env
}

func userOpts(image string, security *corev1.SecurityContext) []oci.SpecOpts {
	user := image
	if security.RunAsUser != nil {
		user = fmt.Sprint(*security.RunAsUser)
	}
	if security.RunAsGroup != nil {
		base, _, _ := strings.Cut(user, ":")
		if base == "" {
			base = "0"
		}
		user = fmt.Sprintf("%s:%d", base, *security.RunAsGroup)
	}
	if user == "" {
		return nil
	}
	// A user without a group gets the groups from the image's /etc/passwd and /etc/group.
	opts := []oci.SpecOpts{oci.WithUser(user)}
	if !strings.Contains(user, ":") {
		opts = append(opts, oci.WithAdditionalGIDs(user))
	}
	return opts
}

func securityOpts(security *corev1.SecurityContext) []oci.SpecOpts {
	if security.Privileged != nil && *security.Privileged {
		opts := []oci.SpecOpts{oci.WithPrivileged, oci.WithNewPrivileges, oci.WithAllDevicesAllowed, oci.WithHostDevices}
		return append(opts, readOnlyRoot(security)...)
	}
	var opts []oci.SpecOpts
	if caps := security.Capabilities; caps != nil {
		if all(caps.Drop) {
			opts = append(opts, oci.WithCapabilities(nil))
		} else {
			opts = append(opts, oci.WithDroppedCapabilities(capNames(caps.Drop)))
		}
		if all(caps.Add) {
			opts = append(opts, oci.WithAllKnownCapabilities)
		} else {
			opts = append(opts, oci.WithAddedCapabilities(capNames(caps.Add)))
		}
	}
	// Allowed by default, as by Kubernetes and Docker: sudo, mail servers and file capabilities need it.
	if security.AllowPrivilegeEscalation == nil || *security.AllowPrivilegeEscalation {
		opts = append(opts, oci.WithNewPrivileges)
	}
	// Last, as the profile depends on the capabilities.
	if p := security.SeccompProfile; p == nil || p.Type != corev1.SeccompProfileTypeUnconfined {
		opts = append(opts, seccomp.WithDefaultProfile())
	}
	return append(opts, readOnlyRoot(security)...)
}

func readOnlyRoot(security *corev1.SecurityContext) []oci.SpecOpts {
	if security.ReadOnlyRootFilesystem != nil && *security.ReadOnlyRootFilesystem {
		return []oci.SpecOpts{oci.WithRootFSReadonly()}
	}
	return nil
}

func all(caps []corev1.Capability) bool {
	for _, c := range caps {
		if strings.EqualFold(string(c), "ALL") {
			return true
		}
	}
	return false
}

// capNames converts capabilities to the notation of the OCI spec: NET_ADMIN becomes CAP_NET_ADMIN.
func capNames(caps []corev1.Capability) []string {
	var names []string
	for _, c := range caps {
		name := strings.ToUpper(string(c))
		if !strings.HasPrefix(name, "CAP_") {
			name = "CAP_" + name
		}
		names = append(names, name)
	}
	return names
}

// withOpenFiles replaces the default limit of 1,024 open files. The hard limit of this process is not exceeded, as that
// would need CAP_SYS_RESOURCE.
func withOpenFiles(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return fmt.Errorf("read limit of open files: %w", err)
	}
	limit := min(own.Max, openFiles)
	s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: limit, Hard: limit}}
	return nil
}

// withResources sets the limits (CPU as a quota of the CFS scheduler, memory in bytes) and the CPU request as shares.
func withResources(res corev1.ResourceRequirements) oci.SpecOpts {
	var opts []oci.SpecOpts
	if cpu, ok := res.Limits[corev1.ResourceCPU]; ok {
		// The kernel refuses a quota below 1 ms.
		opts = append(opts, oci.WithCPUCFS(max(cpu.MilliValue()*cpuPeriod/1000, 1000), cpuPeriod))
	}
	if memory, ok := res.Limits[corev1.ResourceMemory]; ok {
		opts = append(opts, oci.WithMemoryLimit(uint64(memory.Value())))
	}
	if cpu, ok := res.Requests[corev1.ResourceCPU]; ok {
		opts = append(opts, oci.WithCPUShares(uint64(max(cpu.MilliValue()*1024/1000, 2))))
	}
	return oci.Compose(opts...)
}

// home is where a container is: the ID of its pod, and the path of its cgroup. If the pod is prepared, the container's
// first process waits.
type home struct {
	pod, cgroup string
	prepared    bool
	// container is its name if it is not the main one, and kept has the volumes of images that the pod keeps.
	container string
	kept      []imageVolume
}
