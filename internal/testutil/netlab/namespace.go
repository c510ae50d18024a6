// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Dir is where named network namespaces are, the same as of ip-netns(8).
const Dir = "/run/netns"

// Namespace is a network namespace with a name in Dir.
type Namespace struct {
	// Name is its name in Dir, as `ip netns` shows it.
	Name string
	// Host is its name within the network: "node", "link", "client0", …
	Host string
	// Path is the file that it is bound to.
	Path string
	// Addr is the host's address on the link; the link itself has none.
	Addr netip.Addr
	// Cookie is the kernel's cookie of the namespace: what SO_NETNS_COOKIE and bpf_get_netns_cookie tell.
	Cookie uint64
}

// newNamespace makes a namespace and binds it to its name.
func newNamespace(name, host string) (_ *Namespace, err error) {
	if err := shareDir(); err != nil {
		return nil, err
	}
	ns := &Namespace{Name: name, Host: host, Path: filepath.Join(Dir, name)}
	f, err := os.OpenFile(ns.Path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return nil, fmt.Errorf("make network namespace: %w", err)
	}
	f.Close()
	defer func() {
		if err != nil {
			_, rmErr := ns.remove()
			err = errors.Join(fmt.Errorf("make network namespace %s: %w", name, err), rmErr)
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

// shareDir makes Dir a shared mount, as `ip netns add` does: otherwise a mount namespace that is made later would
// keep its own copy of each of our mounts, and a namespace would live on after it was removed here.
func shareDir() error {
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

// onThread runs f locked to an OS thread whose network namespace f may change; it is put back afterwards.
func onThread(f func() error) error {
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the thread's network namespace: %w", err)
	}
	defer before.Close()
	defer func() {
		if err := netns.Set(before); err != nil {
			// A thread in the wrong namespace must never run another goroutine.
			panic(fmt.Sprintf("put the thread's network namespace back: %v", err))
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// Do runs f in the namespace, on the calling goroutine locked to its thread. Sockets that f makes stay in the
// namespace for good, also when used elsewhere. Goroutines that f starts are NOT in the namespace.
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

// Command is a command that runs in the namespace, by nsenter(1). It shares all other namespaces with this
// process. When ctx ends the process is killed.
func (ns *Namespace) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + ns.Path, "--"}, argv...)...)
}

// handle opens netlink in the namespace; the caller closes it.
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

// open tells whether the namespace is there.
func (ns *Namespace) open() bool {
	var st unix.Statfs_t
	return unix.Statfs(ns.Path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// remove kills what runs in the namespace, which it returns, and takes away its name.
func (ns *Namespace) remove() (left []string, err error) {
	if ns.open() {
		if left, err = ns.killAll(); err != nil {
			return left, err
		}
		if err := unix.Unmount(ns.Path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return left, fmt.Errorf("unmount %s: %w", ns.Path, err)
		}
	}
	if err := os.Remove(ns.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return left, fmt.Errorf("remove network namespace: %w", err)
	}
	return left, nil
}

// Counters returns the namespace's counters of /proc/net/snmp and /proc/net/netstat (IPv4, TCP, UDP, ICMP), by
// their names with the protocol in front: "TcpExt.TCPSynRetrans", "Tcp.ActiveOpens".
func (ns *Namespace) Counters() (map[string]uint64, error) {
	all := map[string]uint64{}
	err := ns.Do(func() error {
		for _, name := range []string{"snmp", "netstat"} {
			f, err := os.Open("/proc/thread-self/net/" + name)
			if err != nil {
				return err
			}
			err = readCounters(f, all)
			f.Close()
			if err != nil {
				return fmt.Errorf("read %s of %s: %w", name, ns.Name, err)
			}
		}
		return nil
	})
	return all, err
}

// readCounters reads pairs of lines, "Proto: name name …" and "Proto: value value …".
func readCounters(r io.Reader, into map[string]uint64) error {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		names := strings.Fields(s.Text())
		if !s.Scan() {
			break
		}
		values := strings.Fields(s.Text())
		if len(names) == 0 || len(names) != len(values) || names[0] != values[0] {
			return errors.New("names and values do not match")
		}
		for i := 1; i < len(names); i++ {
			v, err := strconv.ParseInt(values[i], 10, 64) // Tcp.MaxConn is -1
			if err != nil {
				return err
			}
			into[strings.TrimSuffix(names[0], ":")+"."+names[i]] = uint64(v)
		}
	}
	return s.Err()
}

// SYNRetransmits tells how many SYNs (and SYN-ACKs) the namespace has sent again since it was made.
func (ns *Namespace) SYNRetransmits() (uint64, error) {
	c, err := ns.Counters()
	if err != nil {
		return 0, err
	}
	n, ok := c["TcpExt.TCPSynRetrans"]
	if !ok {
		return 0, fmt.Errorf("network namespace %s: the kernel does not count TCPSynRetrans", ns.Name)
	}
	return n, nil
}
