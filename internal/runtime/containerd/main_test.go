// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/ownns"
)

// The tests run in their own network and mount namespaces, each with a real containerd of its own.
func TestMain(m *testing.M) {
	ownns.Main(func() int {
		if err := machine(); err != nil {
			fmt.Println(err)
			return 1
		}
		var err error
		if programs, err = memoryFolder(); err != nil {
			fmt.Println(err)
			return 1
		}
		return m.Run()
	})
}

// memoryFolder returns a folder in a tmpfs that is mounted nowhere and belongs to this process.
func memoryFolder() (string, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return "", fmt.Errorf("open a tmpfs: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return "", fmt.Errorf("make a tmpfs: %w", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("mount a tmpfs: %w", err)
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), root), nil
}

// machine sets up lo in the namespace, with an address from which to reach pods.
func machine() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	return netlink.AddrReplace(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 46, 0, 1),
		Mask: net.CIDRMask(32, 32)}})
}

var testRange = netip.MustParsePrefix("10.46.128.0/17")

// testConfig returns a configuration with temporary folders whose paths are short enough for sockets.
func testConfig(t testing.TB) Config {
	t.Helper()
	dir, err := os.MkdirTemp("", "wg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return Config{
		Containerd: Owned, StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), PodAddresses: testRange,
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// start opens a Runtime that is destroyed with the test.
func start(t testing.TB, cfg Config) *Runtime {
	t.Helper()
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := r.Destroy(ctx); err != nil {
			t.Error("destroy:", err)
		}
		if err := RemoveOwn(cfg.StateDir); err != nil {
			t.Error(err)
		}
	})
	return r
}

// startWithProbe is start, with the probe image loaded.
func startWithProbe(t testing.TB, cfg Config) *Runtime {
	t.Helper()
	r := start(t, cfg)
	loadProbe(t, r)
	return r
}

func loadProbe(t testing.TB, r *Runtime) {
	t.Helper()
	img, err := runtimetest.Probe()
	if err != nil {
		t.Fatal(err)
	}
	if err := image.ImportImage(t.Context(), r.Client(), runtimetest.ProbeTag, img); err != nil {
		t.Fatal(err)
	}
}
