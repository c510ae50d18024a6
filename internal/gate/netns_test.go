// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"

	"wangell.loutres.me/test/testutil/tcpserver"
)

// sh runs a shell script.
func sh(t testing.TB, format string, args ...any) string {
	t.Helper()
	out, err := shErr(format, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// shErr is like sh and returns an error.
func shErr(format string, args ...any) (string, error) {
	line := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-ec", line).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", line, err, out)
	}
	return string(out), nil
}

// smallBuffers is a setting by which windows are smaller than OLD_ACK. Acknowledgments that wait on one processor while
// another one handles later ones could otherwise be too old to fit their flow.
const smallBuffers = "net.ipv4.tcp_rmem=4096 131072 1000000"

// newNamespace creates a network namespace with lo up and without IPv6. Only this process sees its name.
func newNamespace(t testing.TB, name string) {
	t.Helper()
	sh(t, `ip netns add %[1]s; ip -n %[1]s link set lo up
		ip netns exec %[1]s sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1 '%[2]s'`, name,
		smallBuffers)
	t.Cleanup(func() { sh(t, "ip netns del %s", name) })
}

// inNamespace runs f on a thread in a named network namespace; in the test's own if the name is empty.
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
		return back // the thread stays locked and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

// podNamespace moves the pod's end of pod i's veth into a network namespace. It returns a function that waits for
// frames arriving there.
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

// listenIn listens in a network namespace until the test ends.
func listenIn(t testing.TB, ns string, at netip.AddrPort) net.Listener {
	t.Helper()
	var l net.Listener
	if err := inNamespace(ns, func() (err error) { l, err = net.Listen("tcp4", at.String()); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// serveIn runs a server in a network namespace until the test ends. handle is called for each connection, on a
// goroutine of its own, and the connection is then closed.
func serveIn(t testing.TB, ns string, at netip.AddrPort, handle func(net.Conn)) net.Listener {
	t.Helper()
	l := listenIn(t, ns, at)
	tcpserver.Serve(l, handle)
	return l
}
