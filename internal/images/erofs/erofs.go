// SPDX-License-Identifier: Apache-2.0

// Package erofs configures containerd to unpack each layer into one image of the file system EROFS, instead of writing
// each of its files: https://github.com/containerd/containerd/blob/main/docs/snapshotters/erofs.md
package erofs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"wangell.loutres.me/internal/images/pullstat"
)

const (
	// Snapshotter is the name of containerd's snapshotter for EROFS, and of its differ, which unpacks.
	Snapshotter = "erofs"
	// Program makes the images. containerd looks for it in its own $PATH, once.
	Program = "mkfs.erofs"
	// Package is the Debian package that has it.
	Package = "erofs-utils"
)

// Supported reports whether a version of containerd has the differ and can unpack several layers at once with it:
// 2.2.3 or later.
func Supported(containerd string) bool { return pullstat.UnpacksInParallel(containerd) }

// MountsFiles reports whether a release of the kernel mounts EROFS images that are files: 6.12 or later. Earlier ones
// need a loop device for each layer.
func MountsFiles(release string) bool { return compare(parse(release), version{6, 12, 0}) >= 0 }

// Maker is a mkfs.erofs that can read archives.
type Maker struct {
	// File is where it is.
	File string
	// Version is the version of erofs-utils.
	Version string
}

// Find returns the mkfs.erofs in the folders of path, which is a $PATH. It is an error if that cannot read archives,
// which it can since erofs-utils 1.7.
func Find(ctx context.Context, path string) (Maker, error) {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, Program)
		if _, err := exec.LookPath(file); err != nil || !filepath.IsAbs(dir) {
			continue
		}
		help, err := exec.CommandContext(ctx, file, "--help").CombinedOutput()
		if err != nil {
			return Maker{}, fmt.Errorf("%s --help: %w: %s", file, err, bytes.TrimSpace(help))
		}
		text, err := exec.CommandContext(ctx, file, "--version").CombinedOutput()
		if err != nil {
			return Maker{}, fmt.Errorf("%s --version: %w: %s", file, err, bytes.TrimSpace(text))
		}
		m := Maker{File: file, Version: versionIn(string(text))}
		if !bytes.Contains(help, []byte("--tar=")) {
			return m, fmt.Errorf("%s %s cannot read archives: install %s 1.7 or later", file, m.Version, Package)
		}
		return m, nil
	}
	return Maker{}, fmt.Errorf("no %s in %s: install the package %s 1.7 or later", Program, path, Package)
}

// versionIn returns the version in the output of mkfs.erofs --version, "mkfs.erofs (erofs-utils) 1.8.6" or
// "mkfs.erofs 1.7.1"; empty: none.
func versionIn(text string) string {
	for word := range strings.FieldsSeq(text) {
		if word[0] >= '0' && word[0] <= '9' {
			return word
		}
	}
	return ""
}

// options are what mkfs.erofs is called with, as far as this version knows them: files keep their order and the image
// depends on nothing but the layer.
func (m Maker) options() []string {
	v := parse(m.Version)
	switch {
	case compare(v, version{1, 8, 2}) >= 0:
		return []string{"-T0", "--mkfs-time", "--sort=none"}
	case compare(v, version{1, 8, 0}) >= 0:
		return []string{"-T0", "--mkfs-time"}
	}
	return nil
}

// Make writes the image of an uncompressed archive into a file, as containerd's differ does.
func (m Maker) Make(ctx context.Context, archive io.Reader, file string) error {
	args := append([]string{"--tar=f", "--aufs", "--quiet", "-Enoinline_data", "-b4096"}, m.options()...)
	cmd := exec.CommandContext(ctx, m.File, append(args, file)...)
	cmd.Stdin = archive
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", m.File, err, bytes.TrimSpace(out))
	}
	return nil
}

// Config returns the tables for containerd's configuration, in version 2 or later, that have its clients unpack with
// the differ into snapshots of the snapshotter. Others are unpacked as before.
func (m Maker) Config() string {
	text := "[plugins.\"io.containerd.service.v1.diff-service\"]\n  default = [\"erofs\", \"walking\"]\n"
	if quoted := m.options(); quoted != nil {
		for i, o := range quoted {
			quoted[i] = strconv.Quote(o)
		}
		text += "[plugins.\"io.containerd.differ.v1.erofs\"]\n  mkfs_options = [" + strings.Join(quoted, ", ") + "]\n"
	}
	return text
}

// ConfigOfCRI returns the tables that have the CRI plugin of containerd 2, which pulls for kubelet, keep images of a
// platform, such as linux/amd64, in the snapshotter.
func ConfigOfCRI(platform string) string {
	return fmt.Sprintf("[plugins.\"io.containerd.cri.v1.images\"]\n  snapshotter = \"erofs\"\n"+
		"[[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\n"+
		"  platform = %q\n  snapshotter = \"erofs\"\n  differ = \"erofs\"\n", platform)
}

// version has the numbers of major, minor and patch.
type version [3]int

// parse reads the numbers at the beginning of a version; what is no number counts as 0.
func parse(s string) version {
	var v version
	_, _ = fmt.Sscanf(s, "%d.%d.%d", &v[0], &v[1], &v[2])
	return v
}

func compare(a, b version) int { return slices.Compare(a[:], b[:]) }
