// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"wangell.loutres.me/test/vm/plan"
)

func TestKernelsAreChosenFromPackageNames(t *testing.T) {
	all := releases([]string{"linux-image-amd64", "linux-image-7.3.4+deb13-amd64", "linux-image-6.12.9+deb12-amd64",
		"linux-image-6.12.117+deb13-amd64", "linux-image-6.12.117+deb13-cloud-amd64", "linux-image-6.1.0-44-amd64",
		"linux-image-6.12.117+deb13-amd64-unsigned", "linux-image-6.12.117+deb13-rt-amd64",
		"linux-image-6.12.117+deb13-arm64", "linux-image-6.1.0-9-amd64"}, "amd64")
	if want := []string{"6.1.0-9-amd64", "6.1.0-44-amd64", "6.12.9+deb12-amd64", "6.12.117+deb13-amd64",
		"7.3.4+deb13-amd64"}; !slices.Equal(all, want) {
		t.Fatalf("%v, want %v", all, want)
	}
	for word, want := range map[string]string{"oldest": all[2], "newest": all[4], "6.12": all[3], "6.12.9": all[2],
		"6.1": all[1], "7": all[4], "6.12.117+deb13": all[3], "6.6": "", "6.12.11": "", "old": ""} {
		got, err := choose(all, word)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", word, got, err, want)
		}
	}
}

func TestModulesAreLoadedAfterWhatTheyNeed(t *testing.T) {
	dir := t.TempDir()
	const dep = `kernel/fs/ext4/ext4.ko.xz: kernel/lib/crc16.ko.xz kernel/fs/jbd2/jbd2.ko.xz
kernel/fs/jbd2/jbd2.ko.xz: kernel/lib/crc16.ko.xz
kernel/lib/crc16.ko.xz:
kernel/drivers/virtio-blk.ko:
`
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(dep), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := moduleOrder(dir, []string{"ext4", "virtio_blk", "built_in"})
	want := []string{"kernel/lib/crc16.ko.xz", "kernel/fs/jbd2/jbd2.ko.xz", "kernel/fs/ext4/ext4.ko.xz",
		"kernel/drivers/virtio-blk.ko"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// cpio(1), where there is one, reads what is written.
func TestInitramfsIsACpioArchive(t *testing.T) {
	var b bytes.Buffer
	a := cpio{w: &b}
	a.add("init", 0o100755, []byte("hello"))
	a.add("dev", 0o040755, nil)
	a.add("TRAILER!!!", 0, nil)
	if a.err != nil || b.Len()%4 != 0 || strings.Count(b.String(), "070701") != 3 {
		t.Fatalf("%v: %q", a.err, b.String())
	}
	if _, err := exec.LookPath("cpio"); err != nil {
		return
	}
	cmd := exec.Command("cpio", "--list", "--quiet")
	cmd.Stdin = &b
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "init\ndev\n" {
		t.Errorf("cpio: %q, %v", out, err)
	}
}

func TestTableShowsEveryCheckOfEveryVM(t *testing.T) {
	ok := plan.Event{Check: "load", State: plan.Passed, Seconds: 2}
	text, passed, failed := table([]result{
		{Release: "6.12.1-amd64", BootSeconds: 3, Seconds: 10,
			Checks: []plan.Event{ok, {Check: "demo", State: plan.Failed}}},
		{Release: "7.0.1-amd64", Problem: "no events", Checks: []plan.Event{ok}},
	})
	const want = `check  6.12.1-amd64   7.0.1-amd64
boot            3 s           0 s
load         ok 2 s        ok 2 s
demo         FAILED       not run
all            10 s        FAILED
`
	if text != want || passed != 2 || failed != 2 {
		t.Errorf("%d passed, %d failed:\n%s", passed, failed, text)
	}
}

func TestUnknownChecksAreRefused(t *testing.T) {
	if _, err := chosenChecks("load,fixture"); err == nil || !strings.Contains(err.Error(), `"fixture"`) {
		t.Errorf("error %v", err)
	}
}
