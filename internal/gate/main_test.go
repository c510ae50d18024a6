// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"wangell.loutres.me/test/testutil/ownns"
	"wangell.loutres.me/test/testutil/tcpserver"
)

func TestMain(m *testing.M) {
	if at := os.Getenv(echoAt); at != "" {
		os.Exit(runServer(at, true))
	}
	if at := os.Getenv(sendAt); at != "" {
		os.Exit(runServer(at, false))
	}
	flag.Parse()
	if f := flag.Lookup("test.fuzzworker"); f != nil && f.Value.String() == "true" && os.Getenv(worker) == "" {
		os.Exit(runWorker())
	}
	keepTypes()
	ownns.Main(m.Run)
}

// keepTypes makes gates share what is read of the programs and of the kernel's types. Each load changes a copy.
func keepTypes() {
	read := sync.OnceValues(loadGate)
	readPrograms = func() (*ebpf.CollectionSpec, error) {
		spec, err := read()
		return spec.Copy(), err
	}
	kernelTypes = btf.NewCache()
}

const worker = "WANGELL_TEST_WORKER"

// runWorker runs a worker of go test -fuzz in namespaces of its own, because those of its parent hold the parent's
// gate. Both communicate through the files 3 to 5.
func runWorker() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), worker+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	for fd := uintptr(3); fd <= 5; fd++ {
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(fd, "fuzz"))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			return exit.ExitCode()
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

var serviceRange = netip.MustParsePrefix("10.46.100.0/24")

// veth creates a veth pair and returns the first end.
func veth(t testing.TB, name string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{name, name + "p"} {
		l, err := netlink.LinkByName(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(l) })
	return l
}

func openGate(t testing.TB, change func(*Config)) *Gate {
	t.Helper()
	nic := veth(t, "nic")
	cfg := Config{Dir: t.TempDir(), ServiceRanges: []netip.Prefix{serviceRange}, Interfaces: []string{nic.Attrs().Name},
		Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if change != nil {
		change(&cfg)
	}
	g, err := openAny(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeAny(g, cfg.Remove); err != nil {
			t.Error(err)
		}
	})
	return g
}

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
