// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// volumeMounts are the mounts of a pod's volumes. That their sources exist is checked by makeVolumes.
func (r *Runtime) volumeMounts(spec *v1alpha1.WangellServiceSpec, id string) ([]specs.Mount, error) {
	volumes := map[string]corev1.Volume{}
	for _, v := range spec.Volumes {
		volumes[v.Name] = v
	}
	var mounts []specs.Mount
	for _, m := range spec.VolumeMounts {
		v, ok := volumes[m.Name]
		if !ok {
			return nil, fmt.Errorf("volumeMounts: volume %q is not in spec.volumes", m.Name)
		}
		if m.SubPath != "" || m.SubPathExpr != "" {
			return nil, fmt.Errorf("volumeMounts: %q: subPath is not possible on one machine: mount the whole volume", m.Name)
		}
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		mount := specs.Mount{Destination: m.MountPath, Type: "bind", Options: []string{"rbind", "rprivate", access}}
		switch {
		case v.HostPath != nil:
			mount.Source = v.HostPath.Path
		case v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumMemory:
			mount.Type, mount.Source = "tmpfs", "tmpfs"
			mount.Options = []string{"nosuid", "nodev", "mode=1777", access}
			if v.EmptyDir.SizeLimit != nil {
				mount.Options = append(mount.Options, fmt.Sprintf("size=%d", v.EmptyDir.SizeLimit.Value()))
			}
		case v.EmptyDir != nil:
			mount.Source = r.emptyDir(id, v.Name)
		default:
			return nil, fmt.Errorf("volume %q: write hostPath or emptyDir, others are not possible on one machine", v.Name)
		}
		mounts = append(mounts, mount)
	}
	return mounts, nil
}

func (r *Runtime) emptyDir(id, volume string) string {
	return filepath.Join(r.podDir(id), "volumes", volume)
}

// makeVolumes makes the pod's empty folders and checks the host's paths, just before the process is started.
func (r *Runtime) makeVolumes(spec *v1alpha1.WangellServiceSpec, id string) error {
	for _, v := range spec.Volumes {
		var err error
		switch {
		case v.HostPath != nil:
			err = checkHostPath(v.HostPath)
		case v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory:
			dir := r.emptyDir(id, v.Name)
			if err = os.MkdirAll(dir, 0o755); err == nil {
				err = os.Chmod(dir, 0o777) // any user of the pod may write, as in Kubernetes; the umask must not matter
			}
		}
		if err != nil {
			return fmt.Errorf("volume %q: %w", v.Name, err)
		}
	}
	return nil
}

// checkHostPath checks, and for the types that say so creates, a path of the host, as
// https://kubernetes.io/docs/concepts/storage/volumes/#hostpath-volume-types has it.
func checkHostPath(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	info, err := os.Stat(h.Path)
	if errors.Is(err, fs.ErrNotExist) {
		switch kind {
		case corev1.HostPathDirectoryOrCreate:
			return os.MkdirAll(h.Path, 0o755)
		case corev1.HostPathFileOrCreate:
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_RDONLY, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
		return fmt.Errorf("hostPath %s does not exist: create it, or set type: DirectoryOrCreate", h.Path)
	}
	if err != nil {
		return fmt.Errorf("hostPath: %w", err)
	}
	mode := info.Mode()
	is := map[corev1.HostPathType]bool{
		corev1.HostPathUnset:             true,
		corev1.HostPathDirectoryOrCreate: mode.IsDir(),
		corev1.HostPathDirectory:         mode.IsDir(),
		corev1.HostPathFileOrCreate:      mode.IsRegular(),
		corev1.HostPathFile:              mode.IsRegular(),
		corev1.HostPathSocket:            mode&fs.ModeSocket != 0,
		corev1.HostPathCharDev:           mode&fs.ModeCharDevice != 0,
		corev1.HostPathBlockDev:          mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0,
	}
	if fits, known := is[kind]; !known {
		return fmt.Errorf("hostPath %s: type %q is unknown", h.Path, kind)
	} else if !fits {
		return fmt.Errorf("hostPath %s is no %s: correct the path or the type", h.Path, strings.TrimSuffix(string(kind), "OrCreate"))
	}
	return nil
}

// bindFile is the mount of one of the pod's files in /etc.
func (r *Runtime) bindFile(id, name string) specs.Mount {
	return specs.Mount{
		Destination: "/etc/" + name, Type: "bind", Source: filepath.Join(r.podDir(id), name),
		Options: []string{"bind", "rprivate", "rw"},
	}
}

// makePodDir makes the folder of a pod with the files that do not depend on its address.
func (r *Runtime) makePodDir(id string) error {
	if err := os.Mkdir(r.podDir(id), 0o711); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.podDir(id), "resolv.conf"), resolvConf(), 0o644)
}

// connectPodDir notes the pod's network in its folder, before its process is started.
func (r *Runtime) connectPodDir(k runtime.Key, id, netns string, addr netip.Addr) error {
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" + addr.String() + "\t" + hostname(k) + "\n"
	if err := os.WriteFile(filepath.Join(r.podDir(id), "hosts"), []byte(hosts), 0o644); err != nil {
		return err
	}
	return os.Symlink(netns, r.netnsLink(id))
}

// resolvConf is the machine's, without name servers on a loopback address, which a pod cannot reach; where
// systemd-resolved listens on such a one, it tells the real ones in a file of its own.
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
