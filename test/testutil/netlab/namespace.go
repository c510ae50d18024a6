// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Dir is the folder of named network namespaces, the same as for ip-netns(8).
const Dir = "/run/netns"

// Namespace is a network namespace with a name in Dir.
type Namespace struct {
	// Name is the name in Dir, as `ip netns` shows it.
	Name string
	// Host is the name within the network: "node", "link", "client0", …
	Host string
	// Path is the file that the namespace is bound to.
	Path string
	// Addr is the host's address on the link. The link itself has none.
	Addr netip.Addr
	// Cookie is the kernel's cookie of the namespace, which SO_NETNS_COOKIE and bpf_get_netns_cookie return.
	Cookie uint64
}

// newNamespace creates a namespace and binds it to its name.
func newNamespace(name, host string) (_ *Namespace, err error) {
	if err := ShareDir(); err != nil {
		return nil, err
	}
	ns := &Namespace{Name: name, Host: host, Path: filepath.Join(Dir, name)}
	f, err := os.OpenFile(ns.Path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil, fmt.Errorf("create network namespace: %w", err)
	}
	f.Close()
	defer func() {
		if err != nil {
			_, rmErr := ns.remove()
			err = errors.Join(fmt.Errorf("create network namespace %s: %w", name, err), rmErr)
		}
	}()
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", ns.Path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind to %s: %w", ns.Path, err)
		}
		ns.Cookie, err = threadCookie()
		return err
	})
	if err != nil {
		return nil, err
	}
	return ns, nil
}

// Existing returns a network namespace created by another program and bound to path. Host and Addr are empty, and this
// package never removes it.
func Existing(path string) (*Namespace, error) {
	ns := &Namespace{Name: filepath.Base(path), Path: path}
	err := ns.Do(func() (err error) {
		ns.Cookie, err = threadCookie()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return ns, nil
}

// ShareDir makes Dir a shared mount, as `ip netns add` does. Otherwise each mount namespace created later would keep
// its own copy of our mounts, and network namespaces would outlive their removal here. And a namespace that was mounted
// there before another program did this could not be removed: it would stay mounted below ("device or resource busy").
func ShareDir() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // it is not a mount point yet
		if err := unix.Mount(Dir, Dir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s to itself: %w", Dir, err)
		}
		err = unix.Mount("", Dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("make %s shared: %w", Dir, err)
	}
	return nil
}

// Do runs f in the namespace, on the calling goroutine locked to its thread. Sockets that f creates stay in the
// namespace wherever they are used. Goroutines that f starts are NOT in the namespace.
func (ns *Namespace) Do(f func() error) error {
	return onThread(func() error {
		h, err := netns.GetFromPath(ns.Path)
		if err != nil {
			return fmt.Errorf("open network namespace %s: %w", ns.Name, err)
		}
		defer h.Close()
		if err := netns.Set(h); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", ns.Name, err)
		}
		return f()
	})
}

// Command returns a command that runs in the namespace, through nsenter(1), and in all other namespaces of this
// process. It is killed when ctx ends.
func (ns *Namespace) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + ns.Path, "--"}, argv...)...)
}

// handle opens netlink in the namespace. The caller closes it.
func (ns *Namespace) handle() (*netlink.Handle, error) {
	h, err := netns.GetFromPath(ns.Path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", ns.Name, err)
	}
	defer h.Close()
	nl, err := netlink.NewHandleAt(h, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", ns.Name, err)
	}
	return nl, nil
}

// open reports whether the namespace exists.
func (ns *Namespace) open() bool {
	var st unix.Statfs_t
	return unix.Statfs(ns.Path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// remove removes the namespace. It kills the processes in it and returns their descriptions.
func (ns *Namespace) remove() (left []string, err error) {
	if ns.open() {
		if left, err = ns.killAll(); err != nil {
			return left, err
		}
		err := unix.Unmount(ns.Path, unix.MNT_DETACH)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return left, fmt.Errorf("unmount %s: %w", ns.Path, err)
		}
	}
	if err := os.Remove(ns.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return left, fmt.Errorf("remove network namespace: %w", err)
	}
	return left, nil
}

// killAll kills every process in the namespace except this one and returns their descriptions.
func (ns *Namespace) killAll() ([]string, error) {
	var own unix.Stat_t
	if err := unix.Stat(ns.Path, &own); err != nil {
		return nil, fmt.Errorf("look at network namespace %s: %w", ns.Name, err)
	}
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var killed []string
	for _, p := range all {
		var st unix.Stat_t
		err := unix.Stat(fmt.Sprintf("/proc/%d/ns/net", p.pid), &st)
		if p.pid == os.Getpid() || err != nil || st.Ino != own.Ino || st.Dev != own.Dev {
			continue
		}
		fd, err := unix.PidfdOpen(p.pid, 0)
		if err != nil {
			continue // it has just exited
		}
		// The pid may have been reused before the pidfd was opened, but not after.
		now, err := startTime(p.pid)
		if err == nil && now == p.start && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			killed = append(killed, p.String())
			const patience = 5000 // milliseconds: a process inside a system call takes a while to exit
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
		}
		unix.Close(fd)
	}
	return killed, nil
}
