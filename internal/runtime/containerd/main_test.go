// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/moby/sys/mountinfo"
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

// inventory lists what an instance has on the machine: devices, routes, mounts, cgroups, processes, folders. It
// searches by the instance's paths and names, and so finds what the instance itself has lost track of.
func inventory(t testing.TB, cfg Config) []string {
	t.Helper()
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	base := filepath.Dir(cfg.RunDir)
	var found []string
	add := func(kind, what string) { found = append(found, kind+" "+what) }
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Attrs().Name != "lo" {
			add("device", l.Attrs().Name)
		}
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		add("route", r.Dst.String())
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if strings.HasPrefix(m.Mountpoint, base) {
			add("mount", m.Mountpoint)
		}
	}
	controllers, err := os.ReadDir(cgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range controllers {
		_ = filepath.WalkDir(filepath.Join(cgroupRoot, c.Name(), cfg.cgroup()),
			func(p string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					add("cgroup", p)
				}
				return nil
			})
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		text, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(text), base) && p != fmt.Sprintf("/proc/%d/cmdline", os.Getpid()) {
			add("process", strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	for _, dir := range []string{"pods", "netns", "containerd", "runc"} {
		entries, _ := os.ReadDir(filepath.Join(cfg.RunDir, dir))
		if dir == "containerd" && len(entries) > 0 {
			entries = entries[:1]
		}
		for _, e := range entries {
			if dir != "runc" {
				add("folder", filepath.Join(dir, e.Name()))
			}
		}
	}
	volumes, _ := filepath.Glob(filepath.Join(cfg.emptyDirs(), "*"))
	for _, v := range volumes {
		add("folder", v)
	}
	slices.Sort(found)
	return found
}

// pods lists what of an instance concerns its pods, in containerd and on the machine.
func podInventory(t testing.TB, r *Runtime) []string {
	t.Helper()
	ctx := context.Background()
	var found []string
	list, err := r.client.ContainerService().List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		found = append(found, "container "+c.ID)
	}
	err = r.client.SnapshotService(DefaultSnapshotter).Walk(ctx, func(_ context.Context, i snapshots.Info) error {
		if i.Kind == snapshots.KindActive {
			found = append(found, "snapshot "+i.Name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range inventory(t, r.cfg) {
		if !strings.HasPrefix(x, "process containerd --config") && !strings.HasPrefix(x, "folder containerd") &&
			!strings.HasSuffix(x, r.cfg.cgroup()) {
			found = append(found, x)
		}
	}
	slices.Sort(found)
	return found
}
