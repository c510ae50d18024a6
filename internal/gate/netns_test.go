// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// sh runs a shell script.
func sh(t testing.TB, format string, args ...any) string {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-ec", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// newNamespace makes a network namespace, with lo up and without IPv6, that this process alone sees by its name.
func newNamespace(t testing.TB, name string) {
	t.Helper()
	sh(t, `ip netns add %[1]s; ip -n %[1]s link set lo up; ip netns exec %[1]s sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1`, name)
	t.Cleanup(func() { sh(t, "ip netns del %s", name) })
}

// inNamespace runs f on a thread that is in a named network namespace; in this test's own if the name is empty.
func inNamespace(name string, f func() error) error {
	if name == "" {
		return f()
	}
	ns, err := netns.GetFromName(name)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", name, err)
	}
	defer ns.Close()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	err = f()
	if back := netns.Set(home); back != nil {
		return back // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// podNamespace puts the pod's end of pod i's veth into a network namespace, and returns a function that waits for
// frames that come in there.
func podNamespace(t testing.TB, w *world, i int) func(n int) [][]byte {
	t.Helper()
	name := fmt.Sprintf("pod%d", i)
	newNamespace(t, name)
	sh(t, "ip link set %[1]sp netns %[1]s; ip -n %[1]s link set %[1]sp up", name)
	var wait func(n int) [][]byte
	if err := inNamespace(name, func() error { wait = capture(t, name+"p"); return nil }); err != nil {
		t.Fatal(err)
	}
	return wait
}

// setChecksumOffload turns transmit checksum offload of a device on or off: SIOCETHTOOL (netdevice(7)) with a struct
// ethtool_value (linux/ethtool.h).
func setChecksumOffload(fd int, device string, on bool) error {
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		value.data = 1
	}
	var request struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	request.data = unsafe.Pointer(&value)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return fmt.Errorf("checksum offload of %s: %w", device, errno)
	}
	return nil
}
