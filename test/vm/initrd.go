// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// bootModules are what a VM needs before it has its root file system, in the spelling of modules.dep.
var bootModules = []string{"virtio_pci", "virtio_blk", "virtio_console", "crc32c_generic", "crc32c_cryptoapi", "ext4"}

// writeInitrd writes an initramfs with a program as /init and the modules that a VM needs to mount its disks. The
// modules are below a folder as in a Debian package, and depmod has run.
func writeInitrd(file, program, modules string) error {
	paths, err := moduleOrder(modules, bootModules)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	archive := cpio{w: w}
	archive.add("init", 0o100755, content)
	for _, dir := range []string{"dev", "proc", "sys", "root"} {
		archive.add(dir, 0o040755, nil)
	}
	var list strings.Builder
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".xz")
		if content, err = decompressed(filepath.Join(modules, path)); err != nil {
			return err
		}
		archive.add(name, 0o100644, content)
		fmt.Fprintf(&list, "/%s\n", name)
	}
	archive.add("modules.list", 0o100644, []byte(list.String()))
	archive.add("TRAILER!!!", 0, nil)
	if archive.err != nil {
		return archive.err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// cpio writes an archive in the format newc (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpio struct {
	w     io.Writer
	inode int
	err   error // the first one
}

// add appends a file; the mode includes its type.
func (c *cpio) add(name string, mode int, content []byte) {
	c.inode++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", c.inode, mode, 0, 0, 1, 0,
		len(content), 0, 0, 0, 0, len(name)+1, 0)
	c.write(padded(header + name + "\x00"))
	c.write(padded(string(content)))
}

func (c *cpio) write(s string) {
	if c.err == nil {
		_, c.err = io.WriteString(c.w, s)
	}
}

// padded returns s with zeros up to a multiple of four bytes.
func padded(s string) string { return s + strings.Repeat("\x00", -len(s)&3) }

// moduleOrder returns the paths of modules and of what they depend on, in the order in which to load them. Names that
// the kernel does not have as modules are left out: it has them built in, or another has taken their place.
func moduleOrder(modules string, names []string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	needs, byName := map[string][]string{}, map[string]string{}
	for line := range strings.Lines(string(data)) {
		path, after, _ := strings.Cut(line, ":")
		needs[path] = strings.Fields(after)
		name, _, _ := strings.Cut(filepath.Base(path), ".ko")
		byName[strings.ReplaceAll(name, "-", "_")] = path
	}
	var order []string
	seen := map[string]bool{}
	var visit func(path string)
	visit = func(path string) {
		if path == "" || seen[path] {
			return
		}
		seen[path] = true
		for _, n := range needs[path] {
			visit(n)
		}
		order = append(order, path)
	}
	for _, name := range names {
		visit(byName[name])
	}
	return order, nil
}

// decompressed returns the content of a module, which may be compressed by xz.
func decompressed(path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".xz") {
		return os.ReadFile(path)
	}
	out, err := exec.Command("xz", "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("xz -dc %s: %w", path, err)
	}
	return out, nil
}
