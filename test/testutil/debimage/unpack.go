// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"strings"

	"wangell.loutres.me/internal/images/image"
)

// dropped are folders that no server needs.
var dropped = []string{
	"/usr/share/bash-completion/", "/usr/share/bug/", "/usr/share/doc/", "/usr/share/i18n/", "/usr/share/info/",
	"/usr/share/lintian/", "/usr/share/locale/", "/usr/share/man/",
}

// unpack adds the files of a package to files.
func unpack(ctx context.Context, deb string, files map[string]image.File) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := addTar(out, files)
	if readErr != nil {
		cancel()
	}
	if err := cmd.Wait(); err != nil && readErr == nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return readErr
}

// addTar adds the members of an archive to files.
func addTar(r io.Reader, files map[string]image.File) error {
	for members := tar.NewReader(r); ; {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, r) // padding
			return err
		}
		if err != nil {
			return err
		}
		name := path.Clean("/" + h.Name)
		at := merge(name)
		if skip(at, files) {
			continue
		}
		f := image.File{Mode: h.FileInfo().Mode(), UID: h.Uid, GID: h.Gid}
		switch h.Typeflag {
		case tar.TypeDir:
		case tar.TypeReg:
			if f.Data, err = io.ReadAll(members); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		case tar.TypeSymlink:
			f.Link = h.Linkname
			if at != name && !path.IsAbs(f.Link) {
				f.Link = path.Join(path.Dir(name), f.Link) // the link is one folder deeper than in the archive
			}
		case tar.TypeLink:
			first, ok := files[merge(path.Clean("/"+h.Linkname))]
			if !ok {
				continue // its target was dropped
			}
			f = first
		default:
			return fmt.Errorf("%s: archive member of type %q", name, h.Typeflag)
		}
		files[at] = f
	}
}

// skip reports whether a member is left out: documentation, and folders that exist already, possibly as links.
func skip(name string, files map[string]image.File) bool {
	for _, d := range dropped {
		if strings.HasPrefix(name+"/", d) {
			return true
		}
	}
	old, ok := files[name]
	return name == "/" || ok && old.Mode&(fs.ModeDir|fs.ModeSymlink) != 0 && isSystemDir(name)
}
