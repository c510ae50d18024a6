// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/base/host"
	wangellgate "wangell.loutres.me/internal/gate"
)

const (
	kernelBTF      = "/sys/kernel/btf/vmlinux"
	cgroupRoot     = "/sys/fs/cgroup"
	jitEnable      = "/proc/sys/net/core/bpf_jit_enable"
	seccompActions = "/proc/sys/kernel/seccomp/actions_avail"
)

func kernel() []Check {
	release := wangellgate.KernelRelease()
	return []Check{
		kernelVersion(release),
		fileCheck(kernelBTF, Check{
			Name: "BTF", Group: Kernel, Required: true, For: "reading kernel structures from the gate",
			Do: "use a kernel with CONFIG_DEBUG_INFO_BTF=y",
		}),
		filesystem("bpf", release, Check{
			Name: "bpffs", Group: Kernel, Required: true, For: "pinning maps and programs beyond the life of the daemon",
			Do: "use a kernel with CONFIG_BPF_SYSCALL=y",
		}),
		filesystem("overlay", release, Check{
			Name: "overlayfs", Group: Kernel, Required: true, For: "the root file systems of containers",
			Do: "use a kernel with CONFIG_OVERLAY_FS, or: modprobe overlay",
		}),
		cgroups(cgroupRoot),
		jit(jitEnable),
		fileCheck(seccompActions, Check{
			Name: "seccomp", Group: Kernel, For: "restricting the system calls of containers",
			Do: "use a kernel with CONFIG_SECCOMP_FILTER=y",
		}),
	}
}

func kernelVersion(release string) Check {
	c := Check{
		Name: "kernel", Group: Kernel, Required: true, For: "tcx (since 6.6)",
		Do: fmt.Sprintf("boot Linux %d.%d or later", wangellgate.MinKernel[0], wangellgate.MinKernel[1]),
	}
	old, err := wangellgate.KernelTooOld(release)
	switch {
	case err != nil:
		return c.skipped(err.Error())
	case old:
		return c.missing(release)
	}
	return c.ok(release)
}

// fileCheck is ok if a file exists.
func fileCheck(path string, c Check) Check {
	if _, err := os.Stat(path); err != nil {
		c = c.missing("no " + path)
		if !c.Required {
			c.State = Warn
		}
		return c
	}
	return c.ok(path)
}

// filesystem is ok if the kernel has a type of file system, built in or as a module.
func filesystem(name, release string, c Check) Check {
	found, err := host.FindFilesystem(name, release)
	switch {
	case err != nil:
		return c.skipped(err.Error())
	case found == host.Missing:
		return c.missing("not in " + host.KnownFilesystems + ", no module")
	}
	return c.ok(found)
}

// cgroups checks which kind of control groups is mounted at root (cgroups(7)).
func cgroups(root string) Check {
	c := Check{
		Name: "cgroups", Group: Kernel, Required: true, For: "limiting and freezing containers",
		Do: "mount cgroup2 at " + root,
	}
	isV2 := func(path string) bool {
		var st unix.Statfs_t
		return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
	}
	if isV2(root) {
		data, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
		if err != nil {
			return c.skipped(err.Error())
		}
		return c.controllers("v2", strings.Fields(string(data)), "cpu", "memory", "pids")
	}
	var found []string
	for _, controller := range []string{"cpu", "memory", "pids", "freezer", "devices"} {
		var st unix.Statfs_t
		if unix.Statfs(filepath.Join(root, controller), &st) == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
			found = append(found, controller)
		}
	}
	if len(found) == 0 {
		return c.missing("no control groups at " + root)
	}
	kind := "v1"
	if isV2(filepath.Join(root, "unified")) {
		kind = "hybrid (v1 and v2)"
	}
	return c.controllers(kind, found, "cpu", "memory", "devices")
}

// controllers is ok if every wanted controller is available. Without one, only its limit is not enforced.
func (c Check) controllers(kind string, have []string, want ...string) Check {
	var lacking []string
	for _, w := range want {
		if !slices.Contains(have, w) {
			lacking = append(lacking, w)
		}
	}
	if len(lacking) > 0 {
		c.Do = "enable the controllers: " + strings.Join(lacking, ", ")
		return c.warn(kind + " without " + strings.Join(lacking, ", "))
	}
	return c.ok(kind)
}

// jit checks whether eBPF programs are compiled (bpf_jit_enable, Documentation/admin-guide/sysctl/net.rst).
func jit(sysctl string) Check {
	c := Check{Name: "BPF JIT", Group: Kernel, For: "the gate's speed", Do: "sysctl net.core.bpf_jit_enable=1"}
	value, err := os.ReadFile(sysctl)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Only the initial network namespace shows this sysctl.
		c.Do = ""
		return c.skipped("not visible in this network namespace")
	case err != nil:
		return c.skipped(err.Error())
	case strings.TrimSpace(string(value)) == "0":
		return c.warn("off")
	default:
		return c.ok("on")
	}
}
