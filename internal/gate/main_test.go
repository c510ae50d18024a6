// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink"

	"wangell.loutres.me/test/testutil/ownns"
)

func TestMain(m *testing.M) {
	if at := os.Getenv(echoAt); at != "" {
		os.Exit(runEcho(at))
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
