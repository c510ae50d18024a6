// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/host"
	"wangell.loutres.me/internal/base/process"
	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/test/testutil/need"
)

// dumpOf2 is a part of the output of containerd 2.4.2.
const dumpOf2 = `version = 4

[plugins]
  [plugins.'io.containerd.cri.v1.images']
    snapshotter = 'overlayfs'
    disable_snapshot_annotations = true
    discard_unpacked_layers = false
    max_concurrent_downloads = 3
    image_pull_with_sync_fs = false
    use_local_image_pull = false

    [plugins.'io.containerd.cri.v1.images'.pinned_images]
      max_concurrent_downloads = 7

  [plugins.'io.containerd.transfer.v1.local']
    max_concurrent_downloads = 3
    max_concurrent_unpacks = 1
`

func TestSettingsThatSlowPullsAreNamedWithWhereToWriteThem(t *testing.T) {
	const file = "/etc/containerd/config.toml"
	with := func(old, new string) settings { return parseDump([]byte(strings.Replace(dumpOf2, old, new, 1))) }
	path := func(s settings) Check {
		c, ok := pullPath("2.4.2", file, s)
		if !ok {
			t.Error("no check of the way of pulls")
		}
		return c
	}
	for name, c := range map[string]struct {
		check  Check
		state  State
		says   string
		advise string
	}{
		"one unpacker": {unpacking("2.4.2", file, with("", "")), Warn, "max_concurrent_unpacks is 1",
			`write into /etc/containerd/config.toml, and restart containerd: [plugins."io.containerd.transfer.v1.local"] ` +
				"max_concurrent_unpacks = 4"},
		"four unpackers": {unpacking("2.4.2", file, with("unpacks = 1", "unpacks = 4")), OK, "is 4", ""},
		"old": {unpacking("2.2.2", file, with("unpacks = 1", "unpacks = 4")), Warn, "2.2.2",
			"use containerd 2.2.3 or later"},
		"not told": {unpacking("2.4.2", file, settings{}), Skipped, "does not report", ""},
		"transfer": {path(with("", "")), OK, "use the transfer service", ""},
		"local": {path(with("use_local_image_pull = false", "use_local_image_pull = true")), Warn, "is true",
			"remove use_local"},
		"downloads": {path(with("max_concurrent_downloads = 3", "max_concurrent_downloads = 10")), Warn,
			"because max_concurrent_downloads is 10",
			`remove max_concurrent_downloads from [plugins."io.containerd.cri.v1.images"]`},
		"annotations": {path(with("annotations = true", "annotations = false")), Warn, "disable_snapshot_annotations",
			"remove"},
	} {
		if c.check.State != c.state || !strings.Contains(c.check.Found, c.says) || !strings.Contains(c.check.Do, c.advise) ||
			c.check.State == OK && c.check.Do != "" {
			t.Errorf("%s: %+v", name, c.check)
		}
	}
	if c, ok := pullPath("1.6.20", file, settings{}); ok {
		t.Errorf("containerd 1.6 has no transfer service: %+v", c)
	}
}

func TestErofsIsRecommendedWhereItWorks(t *testing.T) {
	const release = "6.18.0"
	if found, err := host.FindFilesystem(erofs.Snapshotter, release); err != nil || found == host.Missing {
		need.Unmet(t, "needs a kernel with EROFS: %q, %v", found, err)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\necho 'mkfs.erofs 1.8.6 --tar=X'\n"
	if err := os.WriteFile(filepath.Join(dir, erofs.Program), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	with := func(snapshotter, differs, path string) runningContainerd {
		return runningContainerd{version: "2.4.2", file: "/c.toml", path: path, settings: settings{
			imagesPlugin + " snapshotter": snapshotter, diffPlugin + " default": differs}}
	}
	for name, c := range map[string]struct {
		release      string
		d            runningContainerd
		state        State
		says, advise string
	}{
		"overlayfs":     {release, with("overlayfs", "['walking']", dir), Warn, "snapshotter overlayfs", "change /c.toml"},
		"old kernel":    {"6.8.0", with("overlayfs", "['walking']", dir), Warn, "loop device", "Linux 6.12"},
		"all":           {release, with("erofs", "['erofs', 'walking']", dir), OK, "1.8.6", ""},
		"no program":    {release, with("erofs", "['erofs', 'walking']", "/none"), Warn, "every file", "erofs-utils"},
		"other differ":  {release, with("erofs", "['walking']", dir), Warn, "without the differ", `["erofs", "walking"]`},
		"not installed": {release, with("overlayfs", "['walking']", "/none"), Warn, "overlayfs", "docs/images/erofs.md"},
	} {
		got, ok := erofsLayers(t.Context(), c.release, c.d)
		if !ok || got.State != c.state || !strings.Contains(got.Found, c.says) || !strings.Contains(got.Do, c.advise) ||
			got.State == OK && got.Do != "" {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
	}
	old := with("overlayfs", "['walking']", dir)
	old.version = "2.2.2"
	for name, d := range map[string]runningContainerd{"old": old, "no CRI": {version: "2.4.2", settings: settings{}}} {
		if c, ok := erofsLayers(t.Context(), release, d); ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestGzipProgramsAreLookedForWhereContainerdLooks(t *testing.T) {
	dir := t.TempDir()
	put := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if c := gzipProgram("2.4.2", dir); c.State != Warn || !strings.Contains(c.Do, "isal") {
		t.Errorf("without a program: %+v", c)
	}
	if c := gzipProgram("1.7.1", dir); c.State != Warn || !strings.Contains(c.Do, "pigz") {
		t.Errorf("without a program, containerd 1: %+v", c)
	}
	put("unpigz")
	if c := gzipProgram("2.4.2", dir); c.State != Warn || !strings.Contains(c.Do, "isal") {
		t.Errorf("with unpigz: %+v", c)
	}
	if c := gzipProgram("1.7.1", dir); c.State != OK {
		t.Errorf("with unpigz, containerd 1: %+v", c)
	}
	put("igzip")
	if c := gzipProgram("2.4.2", "/nowhere:"+dir); c.State != OK || !strings.Contains(c.Found, "igzip") {
		t.Errorf("with igzip: %+v", c)
	}
}

func TestConfigurationIsTheOneOfTheCommandLine(t *testing.T) {
	for line, want := range map[string]string{
		"containerd": "/etc/containerd/config.toml", "containerd --config /a": "/a",
		"containerd -c /b --log-level debug":      "/b",
		"containerd --log-level info --config=/c": "/c", "containerd --config": "/etc/containerd/config.toml",
	} {
		if got := configOf(strings.Fields(line)); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// A real containerd, with an environment and a configuration of its own.
func TestSettingsOfARunningContainerd(t *testing.T) {
	need.Root(t)
	need.Program(t, "containerd", "containerd")
	dir, err := os.MkdirTemp("", "dr") // short, because of the socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket, config := filepath.Join(dir, "sock"), filepath.Join(dir, "config.toml")
	text := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
[grpc]
  address = %q
[ttrpc]
  address = %q
[proxy_plugins.wangell-lazy]
  type = "snapshot"
  address = %q
`, filepath.Join(dir, "root"), filepath.Join(dir, "state"), socket, socket+".ttrpc", filepath.Join(dir, "lazy"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("containerd", "--config", config)
	cmd.Env = []string{"PATH=" + dir}
	p, err := process.Start(cmd, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(10 * time.Second); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		if running, _ := containerdAnswers(ctx, socket); running {
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal("containerd does not answer")
		}
	}
	d, err := findContainerd(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	if d.path != dir || d.file != config || d.version == "" || len(d.settings) == 0 {
		t.Errorf("found %q, %q, %q, %d settings", d.version, d.file, d.path, len(d.settings))
	}
	for _, c := range images(ctx, socket) {
		if c.State == OK && c.Name == "gzip" || c.For == "" || c.State == Skipped {
			t.Errorf("%+v", c)
		}
		t.Logf("%s %s: %s: %s", c.State, c.Name, c.Found, c.Do)
	}
	const anyFile = "/dev/null" // in place of /dev/fuse
	if c := lazyPulls(ctx, socket, anyFile)[0]; c.State != Warn || !strings.Contains(c.Do, "enable --now") {
		t.Errorf("without the snapshotter: %+v", c)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "lazy"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if c := lazyPulls(ctx, socket, anyFile)[0]; c.State != OK {
		t.Errorf("with the snapshotter: %+v", c)
	}
	if c := lazyPulls(ctx, socket, filepath.Join(dir, "none"))[0]; c.State != Warn || !strings.Contains(c.Do, "modprobe") {
		t.Errorf("without FUSE: %+v", c)
	}
	if all := images(ctx, filepath.Join(dir, "none")); len(all) != 1 || all[0].State != Skipped {
		t.Errorf("without containerd: %+v", all)
	}
}
