// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"wangell.loutres.me/internal/images/erofs"
)

// Program makes a program of a Debian package available, which the machine itself need not have: it unpacks the package
// and the libraries that it needs into dir/PACKAGE, and returns dir/PACKAGE-bin, a folder with nothing but the program,
// which runs with those libraries. Its version is that of the package. suite is as in Recipe.
func Program(ctx context.Context, dir, suite, pkg, name string) (bin, version string, err error) {
	built, err := Build(ctx, Recipe{Name: "program-" + pkg, Packages: []string{pkg}, Suite: suite})
	if err != nil {
		return "", "", err
	}
	for _, p := range built.Packages {
		if p.Name == pkg {
			version = p.Version
		}
	}
	layers, err := built.Image.Layers()
	if err != nil {
		return "", "", err
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		return "", "", err
	}
	defer content.Close()
	root := filepath.Join(dir, pkg)
	if err := unpackAll(content, root); err != nil {
		return "", "", fmt.Errorf("unpack package %s: %w", pkg, err)
	}
	if bin = filepath.Join(dir, pkg+"-bin"); os.Mkdir(bin, 0o755) != nil {
		return "", "", fmt.Errorf("make %s: it exists", bin)
	}
	file, err := filepath.EvalSymlinks(filepath.Join(root, "usr/bin", name))
	if err != nil {
		return "", "", fmt.Errorf("package %s: %w", pkg, err)
	}
	loaders, err := filepath.Glob(filepath.Join(root, "usr/lib*/ld-linux*"))
	if err != nil || len(loaders) == 0 {
		return "", "", fmt.Errorf("package %s: no loader of shared libraries: %w", pkg, err)
	}
	libraries, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu*"))
	if err != nil {
		return "", "", err
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' --library-path '%s' '%s' \"$@\"\n", loaders[0],
		strings.Join(libraries, ":"), file)
	return bin, version, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755)
}

// erofsSuite is a release of Debian whose mkfs.erofs can read archives.
const erofsSuite = "trixie"

// MkfsErofs returns a folder with a mkfs.erofs that can read archives, and its version: the machine's own, or that of a
// newer release of Debian, as Program with dir.
func MkfsErofs(ctx context.Context, dir string) (bin, version string, err error) {
	if own, err := erofs.Find(ctx, os.Getenv("PATH")); err == nil {
		return filepath.Dir(own.File), own.Version, nil
	}
	return Program(ctx, dir, erofsSuite, erofs.Package, erofs.Program)
}

// unpackAll unpacks an archive of folders, files and symbolic links into root. Links keep their targets, but absolute
// ones become relative to root.
func unpackAll(r io.Reader, root string) error {
	for members := tar.NewReader(r); ; {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		clean := path.Clean("/" + h.Name)
		name := filepath.Join(root, clean)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			to := h.Linkname
			if path.IsAbs(to) {
				to = filepath.Join(root, to)
			}
			err = os.Symlink(to, name)
		case tar.TypeReg:
			err = writeFrom(members, name, h.FileInfo().Mode().Perm())
		}
		if err != nil {
			return err
		}
	}
}

func writeFrom(r io.Reader, name string, mode fs.FileMode) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Close())
}
