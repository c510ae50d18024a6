// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
)

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
