// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"wangell.loutres.me/api/v1alpha1"
)

// bindFile returns the mount of one of the pod's files in /etc.
func (r *Runtime) bindFile(id, name string) specs.Mount {
	return specs.Mount{
		Destination: "/etc/" + name, Type: "bind", Source: filepath.Join(r.cfg.podDir(id), name),
		Options: []string{"bind", "rprivate", "rw"},
	}
}

// makePodDir creates the folder of a pod with the files that do not depend on its address.
func (r *Runtime) makePodDir(s *v1alpha1.WangellService, id string) error {
	if err := os.Mkdir(r.cfg.podDir(id), 0o711); err != nil {
		return err
	}
	var resolv []byte
	if r.cfg.Names == nil || isNameServer(s) {
		resolv = resolvConf()
	} else {
		resolv = r.cfg.Names.ResolvConf(s.Namespace)
	}
	return os.WriteFile(filepath.Join(r.cfg.podDir(id), "resolv.conf"), resolv, 0o644)
}

// isNameServer reports whether a service wants the port of the name server in its pod's network for itself.
func isNameServer(s *v1alpha1.WangellService) bool {
	return slices.ContainsFunc(s.Spec.PortList(), func(p v1alpha1.Port) bool { return p.Target == domainPort })
}

// domainPort is the port of the DNS (RFC 1035).
const domainPort = 53

// connectPodDir adds the pod's network to its folder, before its process is started.
func (r *Runtime) connectPodDir(k v1alpha1.Key, id, netns string, addr netip.Addr) error {
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + addr.String() + "\t" + hostname(k) +
		"\n"
	if err := os.WriteFile(filepath.Join(r.cfg.podDir(id), "hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	return os.Symlink(netns, r.cfg.netnsLink(id))
}

// resolvConf returns the machine's resolv.conf without name servers on loopback addresses, which a pod cannot reach. If
// systemd-resolved's loopback server is the only one, it uses the file in which systemd-resolved lists the real
// servers.
func resolvConf() []byte {
	for _, file := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		var lines []string
		servers := 0
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 1 && f[0] == "nameserver" {
				if addr, err := netip.ParseAddr(f[1]); err != nil || addr.IsLoopback() {
					continue
				}
				servers++
			}
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
		if servers > 0 {
			return []byte(strings.Join(lines, "\n") + "\n")
		}
	}
	return nil
}

// removePodDir removes the folder of a pod with its emptyDir volumes, and gives up its persistent volumes.
func (r *Runtime) removePodDir(ctx context.Context, id string) error {
	dir := r.cfg.podDir(id)
	if filepath.Dir(dir) != r.cfg.podsDir() {
		return fmt.Errorf("pod %q: not a valid ID", id)
	}
	if err := UnmountBelow(dir); err != nil {
		return err
	}
	if err := r.volumes.Release(ctx, id); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(r.cfg.emptyDirs(), id)), os.RemoveAll(dir))
}

// UnmountBelow unmounts everything at and below dir, innermost first, so that removing dir removes no files of another
// file system.
func UnmountBelow(dir string) error {
	list, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read mounts: %w", err)
	}
	var errs []error
	for _, m := range slices.Backward(list) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL {
			errs = append(errs, fmt.Errorf("unmount %s: %w", m.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}
