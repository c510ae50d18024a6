// SPDX-License-Identifier: Apache-2.0

// Package programimage makes the image of one program that is linked with the GNU C library, for tests.
package programimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// user is an unprivileged user and group.
const user = "65532:65532"

// libraryDirs are the possible folders of this machine's C library.
var libraryDirs = []string{
	"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// Build makes the image of a program and the libraries that it is linked with, which are this machine's. at is the path
// of the program in the image, which is its entry point. It runs as an unprivileged user. The same files give the same
// digest.
func Build(file, at string) (v1.Image, error) {
	files := map[string]string{at: file}
	if err := addLibraries(files, file); err != nil {
		return nil, fmt.Errorf("image of %s: %w", file, err)
	}
	layer, err := layerOf(files)
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", file, err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", file, err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("image of %s: %w", file, err)
	}
	c = c.DeepCopy()
	c.Architecture, c.OS = runtime.GOARCH, "linux"
	c.Config.Entrypoint, c.Config.User = []string{at}, user
	return mutate.ConfigFile(img, c)
}

// addLibraries adds the libraries of a program, as this machine has them. The key is the path in the image.
func addLibraries(files map[string]string, file string) error {
	f, err := elf.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		interpreter, err := io.ReadAll(p.Open())
		if err != nil {
			return err
		}
		loader := string(bytes.TrimRight(interpreter, "\x00"))
		files[loader] = loader
	}
	needed, err := f.ImportedLibraries()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return err
	}
	for _, library := range needed {
		source, err := findLibrary(library)
		if err != nil {
			return err
		}
		// The loader looks in /lib, wherever this machine's distribution has the library.
		to := "/lib/" + library
		if _, known := files[to]; !known {
			files[to] = source
			if err := addLibraries(files, source); err != nil {
				return err
			}
		}
	}
	return nil
}

func findLibrary(library string) (string, error) {
	for _, dir := range libraryDirs {
		if file := filepath.Join(dir, library); isFile(file) {
			return file, nil
		}
	}
	return "", fmt.Errorf("library %s is in none of %v: the program needs the GNU C library", library, libraryDirs)
}

func isFile(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular()
}

// layerOf makes a layer of files that every user may read and execute.
func layerOf(files map[string]string) (v1.Layer, error) {
	var names []string
	for to := range files {
		names = append(names, to)
	}
	slices.Sort(names)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{"/": true}
	for _, to := range names {
		var dirs []string
		for dir := path.Dir(to); !made[dir]; dir = path.Dir(dir) {
			made[dir] = true
			dirs = append(dirs, dir)
		}
		for _, dir := range slices.Backward(dirs) {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755}); err != nil {
				return nil, err
			}
		}
		data, err := os.ReadFile(files[to])
		if err != nil {
			return nil, err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: to[1:], Mode: 0o755, Size: int64(len(data))}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithCompressionLevel(gzip.BestSpeed))
}
