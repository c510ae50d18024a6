// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"wangell.loutres.me/lab"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
)

// TestStorageRunsAndLeavesNothing runs the experiment with fio, a second for each test, and a wangell built from this
// tree. It checks that the experiment works and cleans up, not how long things take.
func TestStorageRunsAndLeavesNothing(t *testing.T) {
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	need.Program(t, "fio", "fio")
	need.Program(t, "iostat", "sysstat")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	wangell, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	temp, err := os.MkdirTemp("", "s") // short, because of the sockets below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(temp) })
	t.Setenv("TMPDIR", temp)
	p := Params{Wangell: wangell, Workload: "fio", Duration: time.Second, Repetitions: 1,
		Tests: []string{"direct", "split_volume", "snapshotter_native"}}
	reports, err := p.Run(ctx, lab.Output{Progress: func(int, int) {}, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	raw := reports[0].Raw.(Samples)
	if len(raw.Runs) != len(p.Tests) {
		t.Fatalf("%d runs, want %d", len(raw.Runs), len(p.Tests))
	}
	for _, r := range raw.Runs {
		if r.Error != "" || len(r.latencies("read")) == 0 || len(r.latencies("fdatasync")) == 0 {
			t.Errorf("%s: %s, operations %d", r.Case, r.Error, len(r.latencies("")))
		}
	}
	if v := reports[0].Versions; v["fio"] == "" || v["fio (client)"] == "" {
		t.Errorf("versions of server and client are missing: %v", v)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(temp))
	if err != nil || len(mounts) > 0 {
		t.Errorf("still mounted: %v, %v", mounts, err)
	}
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		if file, err := os.ReadFile(d); err == nil && strings.HasPrefix(string(file), temp) {
			t.Errorf("%s still has %s", d, file)
		}
	}
}

func TestDisksAreMadeAndRemoved(t *testing.T) {
	need.Root(t)
	for _, kind := range []string{diskPreallocated, diskSparse, diskBtrfs} {
		if kind == diskBtrfs {
			need.Program(t, "mkfs.btrfs", "btrfs-progs")
		}
		d, err := newDisk(t.Context(), kind, "")
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		m, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(d.dir))
		if err != nil || len(m) != 1 || (m[0].FSType == "btrfs") != (kind == diskBtrfs) {
			t.Errorf("%s is mounted as %v, %v", kind, m, err)
		}
		info, err := os.Stat(filepath.Join(d.base, "file"))
		if err != nil || info.Size() != diskSize {
			t.Errorf("%s: its file: %v, %v", kind, info, err)
		}
		if err := d.close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(d.base); !os.IsNotExist(err) {
			t.Errorf("%s: %s is still there", kind, d.base)
		}
	}
	if d, err := newDisk(t.Context(), diskDevice, "/dev/null"); err == nil {
		t.Errorf("a disk on /dev/null: %+v", d)
	}
}

// TestAssertionsFailOnceTheApplicationIsStopped stops Redmine's database while users are at work. Redmine still
// answers, but not with what the test plan wants.
func TestAssertionsFailOnceTheApplicationIsStopped(t *testing.T) {
	need.Chosen(t, "WANGELL_TEST_REDMINE", "1; it installs Redmine and takes minutes")
	need.Root(t)
	wangell, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	w, c := redmine{}, Case{Key: "volume", Disk: diskMachine, Volume: true}
	images, _, err := build(ctx, w, []Case{c})
	if err != nil {
		t.Fatal(err)
	}
	d, err := newDisk(ctx, c.Disk, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	at, err := newServices(ctx, Params{Wangell: wangell}, d.dir, c, w.servers(c), images)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := at.close(); err != nil {
			t.Error(err)
		}
	})
	clients := at.client()
	clients.dir = d.base
	if err := w.prepare(ctx, clients); err != nil {
		t.Fatal(err)
	}
	l := load{rate: 240, duration: 20 * time.Second}
	before, err := w.measure(ctx, clients, l)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(d.base, "samples.jtl")); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	time.AfterFunc(l.duration/2, func() {
		stopped <- at.(*asServices).Exec(ctx, "redmine", "/bin/busybox", "killall", "mariadbd")
	})
	after, err := w.measure(ctx, clients, l)
	if err := errors.Join(err, <-stopped); err != nil {
		t.Fatal(err)
	}
	a, b := aggregateOf(together([]Run{{Result: before}}, "")), aggregateOf(together([]Run{{Result: after}}, ""))
	t.Logf("errors: %.1f %% of %d before, %.1f %% of %d with the database stopped in the middle", a.errorPct(), a.samples,
		b.errorPct(), b.samples)
	// An overloaded machine gives some errors as well.
	if b.errorPct() < a.errorPct()+20 {
		t.Errorf("%d of %d failed before, %d of %d afterwards; want many more", a.errors, a.samples, b.errors, b.samples)
	}
}
