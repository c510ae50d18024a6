// SPDX-License-Identifier: Apache-2.0

// Package image builds small container images without Docker or a registry, writes them to tarballs and registries, and
// imports tarballs into containerd.
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
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is an entry of an image's file system.
type File struct {
	// Data is the content of a regular file.
	Data []byte
	// Mode holds the type (regular, fs.ModeDir or fs.ModeSymlink) and the permissions, with setuid, setgid and sticky
	// bits. Zero means a regular file with mode 0644.
	Mode fs.FileMode
	// Link is the target of a symbolic link.
	Link string
	// UID and GID are the owner and group.
	UID, GID int
}

// Spec describes an image.
type Spec struct {
	// Base is a folder whose content becomes the image's root file system, with its modes and owners, but without
	// devices, sockets and pipes. Empty: none.
	Base string
	// Files are added, or replace files of Base. Keys are absolute paths.
	Files map[string]File
	// Entrypoint and Cmd together are the command of a container. Users replace Cmd to pass other arguments.
	Entrypoint, Cmd []string
	// Env holds entries "NAME=value". If it has no PATH, Debian's default is added.
	Env []string
	// ExposedPorts documents ports, such as "8080/tcp".
	ExposedPorts []string
	// User is "uid", "uid:gid" or a name in the image's /etc/passwd. Empty: root.
	User string
	// WorkingDir is the working directory of the process. Empty: /.
	WorkingDir string
	// Volumes are folders whose content should outlive containers.
	Volumes []string
	// StopSignal is the signal that stops the process, such as "SIGQUIT". Empty: SIGTERM.
	StopSignal string
	// Platform is "os/architecture". Empty: Linux on this machine's architecture.
	Platform string
}

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// epoch is the time stamp of everything in an image, so that the same content gives the same digest.
var epoch = time.Unix(0, 0).UTC()

// Build builds an image with one uncompressed layer. The same content always gives the same digest. Build fails if Base
// cannot be read, a path is not absolute, or the image would have no file.
func Build(s Spec) (v1.Image, error) {
	data, err := layerTar(s)
	if err != nil {
		return nil, fmt.Errorf("build image: %w", err)
	}
	img, err := mutate.Append(empty.Image, mutate.Addendum{
		// Uncompressed, because these images are read once and on this machine.
		Layer:   static.NewLayer(data, types.DockerUncompressedLayer),
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
	for _, v := range s.Volumes {
		if config.Config.Volumes == nil {
			config.Config.Volumes = map[string]struct{}{}
		}
		config.Config.Volumes[v] = struct{}{}
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

// entry is a tar member. open returns the content of a regular file.
type entry struct {
	header tar.Header
	open   func() (io.ReadCloser, error)
}

// layerTar returns the tar archive of a layer: Base, Files and missing parent folders, sorted by name.
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
		return nil, errors.New("no files: name a base folder or files")
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
		return entry{}, fmt.Errorf("file %q: type %v is not supported: use a file, a folder or a symbolic link",
			name, mode.Type())
	}
	return entry{header: h}, nil
}

// addTree adds the content of the folder base. Hard links become separate files.
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

// unixMode converts a mode to Unix, where setuid, setgid and sticky bits are next to the permissions.
func unixMode(m fs.FileMode) int64 {
	mode := int64(m.Perm())
	for bit, unix := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			mode |= unix
		}
	}
	return mode
}
