// SPDX-License-Identifier: Apache-2.0

// Package image builds small container images without Docker and without a registry, writes and
// reads them as tarballs, and brings them into containerd.
package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is one entry of an image's file system.
type File struct {
	// Data is the content of a regular file.
	Data []byte
	// Mode is its type (regular, fs.ModeDir or fs.ModeSymlink) and permissions, setuid and sticky bit
	// included. 0 means a regular file that all may read (0644).
	Mode fs.FileMode
	// Link is the target of a symbolic link.
	Link string
	// UID and GID are the owner.
	UID, GID int
}

// Spec says what an image is made of.
type Spec struct {
	// Base is a folder that becomes the image's root file system, with its modes and owners. Devices,
	// sockets and pipes are left out. Empty: none.
	Base string
	// Files are added, or replace those of Base. The key is the absolute path.
	Files map[string]File
	// Entrypoint and Cmd are what a container runs: Entrypoint, then Cmd as its arguments.
	Entrypoint, Cmd []string
	// Env has entries "NAME=value". Without a PATH there, Debian's usual one is added.
	Env []string
	// ExposedPorts are such as "8080/tcp"; they only document.
	ExposedPorts []string
	// User is "uid", "uid:gid" or a name that /etc/passwd of the image has. Empty: root.
	User string
	// WorkingDir is the folder in which the process starts. Empty: /.
	WorkingDir string
	// StopSignal is what asks the process to end, such as "SIGQUIT". Empty: SIGTERM.
	StopSignal string
	// Platform is "os/architecture". Empty: that of this machine.
	Platform string
}

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// epoch is the time stamp of everything in an image, so that equal content gives an equal digest.
var epoch = time.Unix(0, 0).UTC()

// Build makes an image of one uncompressed layer. The same content always has the same digest. It
// fails if Base cannot be read, a path is not absolute, or the spec has no file at all.
func Build(s Spec) (v1.Image, error) {
	data, err := layerTar(s)
	if err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	// Uncompressed: images made here are read once, on this machine.
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	}, tarball.WithMediaType(types.DockerUncompressedLayer))
	if err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	img, err := mutate.Append(empty.Image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{CreatedBy: "wangell image build", Created: v1.Time{Time: epoch}},
	})
	if err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	if s.Platform != "" {
		p, err := v1.ParsePlatform(s.Platform)
		if err != nil {
			return nil, fmt.Errorf("build image: platform %q: %w", s.Platform, err)
		}
		config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	}
	config.Created = v1.Time{Time: epoch}
	config.Config = v1.Config{
		Entrypoint: s.Entrypoint, Cmd: s.Cmd, Env: withPath(s.Env), User: s.User,
		WorkingDir: s.WorkingDir, StopSignal: s.StopSignal,
	}
	for _, p := range s.ExposedPorts {
		if config.Config.ExposedPorts == nil {
			config.Config.ExposedPorts = map[string]struct{}{}
		}
		config.Config.ExposedPorts[p] = struct{}{}
	}
	return mutate.ConfigFile(img, config)
}

func withPath(env []string) []string {
	for _, e := range env {
		if strings.HasPrefix(e, "PATH=") {
			return env
		}
	}
	return append([]string{defaultPath}, env...)
}

// entry is one tar member; open gives the content of a regular file.
type entry struct {
	header tar.Header
	open   func() (io.ReadCloser, error)
}

// layerTar collects Base and Files, adds missing parent folders, and writes them sorted by name.
func layerTar(s Spec) ([]byte, error) {
	entries := map[string]entry{}
	if s.Base != "" {
		if err := addTree(entries, s.Base); err != nil {
			return nil, err
		}
	}
	for name, f := range s.Files {
		if !path.IsAbs(name) || path.Clean(name) == "/" {
			return nil, fmt.Errorf("file %q: write an absolute path", name)
		}
		e, err := fileEntry(path.Clean(name)[1:], f)
		if err != nil {
			return nil, err
		}
		entries[e.header.Name] = e
	}
	if len(entries) == 0 {
		return nil, errors.New("no file: give a base folder or files")
	}
	for name := range entries {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := entries[dir]; !ok {
				entries[dir] = entry{header: tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}}
			}
		}
	}
	names := make([]string, 0, len(entries))
	for n := range entries {
		names = append(names, n)
	}
	sort.Strings(names)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, n := range names {
		if err := writeEntry(w, entries[n]); err != nil {
			return nil, fmt.Errorf("file /%s: %w", n, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func writeEntry(w *tar.Writer, e entry) error {
	e.header.ModTime, e.header.Format = epoch, tar.FormatPAX
	if e.header.Typeflag == tar.TypeDir {
		e.header.Name += "/"
	}
	if err := w.WriteHeader(&e.header); err != nil {
		return err
	}
	if e.open == nil {
		return nil
	}
	r, err := e.open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(w, r)
	return err
}

func fileEntry(name string, f File) (entry, error) {
	mode := f.Mode
	if mode == 0 {
		mode = 0o644
	}
	h := tar.Header{Name: name, Mode: unixMode(mode), Uid: f.UID, Gid: f.GID}
	switch mode.Type() {
	case 0:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(f.Data))
		return entry{h, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(f.Data)), nil }}, nil
	case fs.ModeDir:
		h.Typeflag = tar.TypeDir
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
	default:
		return entry{}, fmt.Errorf("file %q: type %v is not possible: write a file, a folder or a symbolic link", name, mode.Type())
	}
	return entry{header: h}, nil
}

// addTree adds the folder base. Hard links become separate files.
func addTree(entries map[string]entry, base string) error {
	return filepath.WalkDir(base, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == base {
			return err
		}
		name, err := filepath.Rel(base, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h := tar.Header{Name: name, Mode: unixMode(info.Mode())}
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			h.Uid, h.Gid = int(st.Uid), int(st.Gid)
		}
		var open func() (io.ReadCloser, error)
		switch info.Mode().Type() {
		case 0:
			h.Typeflag, h.Size = tar.TypeReg, info.Size()
			open = func() (io.ReadCloser, error) { return os.Open(p) }
		case fs.ModeDir:
			h.Typeflag = tar.TypeDir
		case fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = os.Readlink(p); err != nil {
				return err
			}
		default:
			return nil
		}
		entries[name] = entry{h, open}
		return nil
	})
}

// unixMode gives permissions with the bits that Go keeps apart in their places in a Unix mode.
func unixMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			mode |= unix
		}
	}
	return mode
}
