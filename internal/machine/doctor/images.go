// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	wangellgate "wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/images/pullstat"
)

// Plugins of containerd with settings of image pulls.
const (
	transferPlugin = "io.containerd.transfer.v1.local"
	imagesPlugin   = "io.containerd.cri.v1.images"
	diffPlugin     = "io.containerd.service.v1.diff-service"
)

// images checks the settings for pulls that docs/images/nodes.md recommends, for the containerd at a socket: in its
// configuration as it is now, and in its own $PATH.
func images(ctx context.Context, address string) []Check {
	d, err := findContainerd(ctx, address)
	if err != nil {
		c := Check{Name: "settings of pulls", Group: Images,
			For: "pulls that take half of the time or less (docs/images/nodes.md)",
			Do:  "nothing, if no containerd pulls for pods here; otherwise name its socket with --containerd-address"}
		return []Check{c.skipped(err.Error())}
	}
	checks := []Check{unpacking(d.version, d.file, d.settings)}
	if c, ok := pullPath(d.version, d.file, d.settings); ok {
		checks = append(checks, c)
	}
	if c, ok := erofsLayers(ctx, wangellgate.KernelRelease(), d); ok {
		checks = append(checks, c)
	}
	checks = append(checks, gzipProgram(d.version, d.path))
	return append(checks, lazyPulls(ctx, address, "/dev/fuse")...)
}

// unpacking checks whether layers are unpacked at once.
func unpacking(version, file string, s settings) Check {
	c := Check{Name: "parallel unpacking", Group: Images, For: "pulls of images with split layers (docs/images/nodes.md)"}
	if !pullstat.UnpacksInParallel(version) {
		c.Do = fmt.Sprintf("use containerd 2.2.3 or later, with max_concurrent_unpacks = %d", pullstat.RecommendedUnpackers)
		return c.warn("containerd " + version + " cannot unpack several layers of an image at once, or not correctly")
	}
	value := s[transferPlugin+" max_concurrent_unpacks"]
	n, err := strconv.Atoi(value)
	if err != nil {
		return c.skipped(fmt.Sprintf("containerd %s does not report its max_concurrent_unpacks (%q)", version, value))
	}
	if n < pullstat.RecommendedUnpackers {
		c.Do = fmt.Sprintf("write into %s, and restart containerd: [plugins.%q] max_concurrent_unpacks = %d", file,
			transferPlugin, pullstat.RecommendedUnpackers)
		return c.warn(fmt.Sprintf("max_concurrent_unpacks is %d", n))
	}
	return c.ok(fmt.Sprintf("max_concurrent_unpacks is %d", n))
}

// onlyLocal are settings of the CRI plugin, with the values that leave pulls to the transfer service; with others the
// plugin pulls by itself, one layer after the other (containerd's CheckLocalImagePullConfigs). Empty: none.
var onlyLocal = []struct{ key, value string }{
	{"use_local_image_pull", "false"}, {"max_concurrent_downloads", strconv.Itoa(pullstat.DefaultDownloads)},
	{"disable_snapshot_annotations", "true"}, {"discard_unpacked_layers", "false"}, {"image_pull_with_sync_fs", "false"},
}

// pullPath checks whether the settings of the transfer service apply to pulls through CRI; ok is false if this
// containerd has no such choice.
func pullPath(version, file string, s settings) (_ Check, ok bool) {
	c := Check{Name: "pulls through CRI", Group: Images, For: "parallel unpacking of what kubelet pulls"}
	if _, ok := s[imagesPlugin+" use_local_image_pull"]; !ok || !pullstat.UnpacksInParallel(version) {
		return c, false
	}
	for _, o := range onlyLocal {
		value, ok := s[imagesPlugin+" "+o.key]
		if !ok || value == o.value {
			continue
		}
		c.Do = fmt.Sprintf("remove %s from [plugins.%q] in %s, and restart containerd", o.key, imagesPlugin, file)
		if o.key == "max_concurrent_downloads" {
			c.Do += fmt.Sprintf("; [plugins.%q] has a setting of that name", transferPlugin)
		}
		return c.warn(fmt.Sprintf("do not use the transfer service, because %s is %s", o.key, value)), true
	}
	return c.ok("use the transfer service"), true
}

// erofsLayers checks whether the CRI plugin has layers unpacked as images of EROFS; ok is false if there is no such
// plugin, or if this version of containerd cannot: then another check asks for a later one.
func erofsLayers(ctx context.Context, release string, d runningContainerd) (_ Check, ok bool) {
	c := Check{Name: "EROFS layers", Group: Images,
		For: "unpacking a layer into one file instead of thousands (docs/images/erofs.md)"}
	now, ok := d.settings[imagesPlugin+" snapshotter"]
	if !ok || !erofs.Supported(d.version) {
		return c, false
	}
	found := "images are kept by the snapshotter " + now
	if !erofs.MountsFiles(release) {
		c.Do = "use Linux 6.12 or later, and then the snapshotter erofs"
		return c.warn(found + "; the kernel mounts EROFS images with a loop device for each layer only"), true
	}
	if kernel := filesystem(erofs.Snapshotter, release, c); kernel.State != OK {
		c.Do = "use a kernel with CONFIG_EROFS_FS"
		return c.warn(found + "; the kernel has no EROFS"), true
	}
	maker, err := erofs.Find(ctx, d.path)
	switch {
	case err != nil && now == erofs.Snapshotter:
		c.Do = fmt.Sprintf("install the package %s 1.7 or later, and restart containerd", erofs.Package)
		return c.warn("every file is written, and the layer then copied into an image: " + err.Error()), true
	case now != erofs.Snapshotter:
		c.Do = fmt.Sprintf("before the node has pods: change %s as docs/images/erofs.md says, and restart "+
			"containerd", d.file)
		return c.warn(found), true
	case !strings.Contains(d.settings[diffPlugin+" default"], erofs.Snapshotter):
		c.Do = fmt.Sprintf("write into %s, and restart containerd: [plugins.%q] default = [\"erofs\", \"walking\"]", d.file,
			diffPlugin)
		return c.warn(found + ", but other clients of containerd unpack without the differ erofs"), true
	}
	return c.ok(fmt.Sprintf("%s; %s %s", found, maker.File, maker.Version)), true
}

// gzipProgram checks whether containerd has a program that decompresses gzip faster than it does itself. path is its
// own $PATH.
func gzipProgram(version, path string) Check {
	c := Check{Name: "gzip", Group: Images, For: "pulls of gzip layers (docs/images/nodes.md)"}
	helpers := pullstat.GzipHelpers(version)
	for i, h := range helpers {
		for _, dir := range filepath.SplitList(path) {
			file := filepath.Join(dir, h.Program)
			if _, err := exec.LookPath(file); err != nil || !filepath.IsAbs(dir) {
				continue
			}
			if i == 0 {
				return c.ok(file)
			}
			c.Do = fmt.Sprintf("install the package %s, whose %s is faster, and restart containerd", helpers[0].Package,
				helpers[0].Program)
			return c.warn(file)
		}
	}
	c.Do = "install the package " + helpers[0].Package + ", and restart containerd"
	var names []string
	for _, h := range helpers {
		names = append(names, h.Program)
	}
	return c.warn(fmt.Sprintf("containerd %s finds no %s in its $PATH", version, strings.Join(names, " or ")))
}
