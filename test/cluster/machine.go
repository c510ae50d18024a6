// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// machineConfig configures the first process of a machine. The control plane and each node are machines, with their own
// network, mount and PID namespaces and host name. When the first process is killed, the kernel kills all others and
// removes every mount.
type machineConfig struct {
	Name string
	Dir  string // its own folder on the host's disk
	// relative to the root of each hierarchy. Inside the machine it is the root; the programs are in its child "system"
	Cgroup string
	CNIBin string // folder with CNI plugins; empty for none
	Node   bool   // a node that runs pods
}

func machineSocket(dir string) string { return filepath.Join(dir, "init.sock") }

// runMachine is the first process of a machine. It enters its cgroup and makes that the root of a cgroup namespace. As
// a namespace belongs to a thread, it then becomes runMachineInside by exec.
func runMachine(configFile string) error {
	c, err := readMachineConfig(configFile)
	if err != nil {
		return err
	}
	if os.Getpid() != 1 {
		return errors.New("machine: must be the first process of a PID namespace; `up` starts it")
	}
	if err := joinCgroup(c.Cgroup); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("machine %s: cgroup namespace: %w", c.Name, err)
	}
	return fmt.Errorf("machine %s: exec: %w", c.Name, unix.Exec("/proc/self/exe",
		[]string{os.Args[0], "machine-inside", configFile}, os.Environ()))
}

func readMachineConfig(file string) (machineConfig, error) {
	var c machineConfig
	b, err := os.ReadFile(file)
	if err != nil {
		return c, fmt.Errorf("machine: %w", err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, fmt.Errorf("machine: %s: %w", file, err)
	}
	return c, nil
}

// runMachineInside continues in the machine's namespaces: it mounts, and runs the machine's programs. It returns only
// on failure.
func runMachineInside(configFile string) error {
	c, err := readMachineConfig(configFile)
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Name)); err != nil {
		return fmt.Errorf("machine %s: host name: %w", c.Name, err)
	}
	if err := mountMachine(c); err != nil {
		return fmt.Errorf("machine %s: %w", c.Name, err)
	}
	// On v2, a cgroup with processes cannot delegate controllers to its children, so this comes after the move.
	for _, f := range []func(string) error{makeCgroup, joinCgroup, makeCgroup} {
		if err := f("/system"); err != nil {
			return fmt.Errorf("machine %s: %w", c.Name, err)
		}
	}
	_ = os.Remove(machineSocket(c.Dir))
	l, err := net.Listen("unix", machineSocket(c.Dir))
	if err != nil {
		return fmt.Errorf("machine %s: %w", c.Name, err)
	}
	if err := os.Chmod(machineSocket(c.Dir), 0o600); err != nil {
		return fmt.Errorf("machine %s: %w", c.Name, err)
	}
	s := newServices(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			s.reap()
		}
	}()
	return http.Serve(l, s.handler())
}

// mountMachine gives a machine its own /run, /var/lib, /var/log, /etc, /opt and kernel file systems, without touching
// those of the host. All mounts are shared within the node, as on a real one, so that what kubelet mounts reaches the
// containers.
func mountMachine(c machineConfig) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	cgroups, err := findCgroupMounts()
	if err != nil {
		return err
	}
	etc := filepath.Join(c.Dir, "etc")
	work := filepath.Join(c.Dir, "etc.work")
	for _, d := range []string{etc, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	steps := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
		optional             bool
	}{
		{source: "proc", target: "/proc", kind: "proc"},
		{source: "sysfs", target: "/sys", kind: "sysfs"},
		{source: "bpf", target: "/sys/fs/bpf", kind: "bpf"},
		{source: "tracefs", target: "/sys/kernel/tracing", kind: "tracefs", optional: true},
		{source: "tmpfs", target: "/run", kind: "tmpfs", data: "mode=755"},
		{source: "tmpfs", target: "/opt", kind: "tmpfs", data: "mode=755"},
		{source: "tmpfs", target: "/var/lib", kind: "tmpfs", data: "mode=755"},
		{source: "tmpfs", target: "/var/log", kind: "tmpfs", data: "mode=755"},
		{source: "overlay", target: "/etc", kind: "overlay", data: fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", etc,
			work)},
	}
	for _, m := range steps {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil && !m.optional {
			return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
		}
	}
	// The new sysfs shows the devices of this network namespace, and no cgroups.
	if err := cgroups.mount(); err != nil {
		return err
	}
	binds := map[string]string{}
	if c.Node {
		for _, d := range []string{"/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/pods"} {
			binds[d] = filepath.Join(c.Dir, filepath.Base(d))
		}
		if err := fakeTunables(c.Dir, binds); err != nil {
			return err
		}
	} else {
		binds["/var/lib/etcd"] = filepath.Join(c.Dir, "etcd")
	}
	if c.CNIBin != "" {
		binds["/opt/cni/bin"] = c.CNIBin
	}
	for target, source := range binds {
		if err := bind(source, target); err != nil {
			return err
		}
	}
	for _, d := range []string{"/run/lock", "/run/netns", "/var/log/containers", "/etc/cni/net.d"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	return nil
}

// fakeTunables mounts files over the kernel settings that kubelet and Cilium write at their start. The settings belong
// to the whole host and must not change.
func fakeTunables(dir string, binds map[string]string) error {
	for name, value := range map[string]string{
		"vm/overcommit_memory":     "1",
		"vm/panic_on_oom":          "0",
		"kernel/panic":             "10",
		"kernel/panic_on_oops":     "1",
		"kernel/keys/root_maxkeys": "1000000",
		// 25 bytes for each key.
		"kernel/keys/root_maxbytes":        "25000000",
		"kernel/unprivileged_bpf_disabled": "1",
		"kernel/timer_migration":           "0",
	} {
		target := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(target); err != nil {
			continue
		}
		source := filepath.Join(dir, "sysctl", name)
		if err := os.MkdirAll(filepath.Dir(source), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(source, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		binds[target] = source
	}
	return nil
}

// bind mounts source on target, and creates missing folders of both.
func bind(source, target string) error {
	for _, d := range []string{source, target} {
		if _, err := os.Stat(d); err == nil {
			continue
		}
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s on %s: %w", source, target, err)
	}
	return nil
}
