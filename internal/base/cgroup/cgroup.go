// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads the files of cgroups, of version 2 or 1. Paths of cgroups are below the root of the hierarchies,
// as runtimes give them.
//
// See https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/memory.html.
package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// DefaultRoot is where the hierarchies are mounted.
const DefaultRoot = "/sys/fs/cgroup"

// ErrNoField is returned if a file has no line with the given name.
var ErrNoField = errors.New("it has no")

// MemoryFiles names the files about the memory of a cgroup. They hold bytes, except Events and Stat, which have lines
// "NAME NUMBER".
type MemoryFiles struct {
	Current string // memory in use, page cache included
	Peak    string // its maximum so far; with version 2 since Linux 5.19
	Limit   string
	Events  string // has oom_kill
	Stat    string
	Swap    string // memory in swap

	// InactiveFile is the field of Stat with the page cache that has not been used lately.
	InactiveFile string
	// SwapAndRAM means that Swap counts both.
	SwapAndRAM bool
}

// Memory returns the file names of the cgroup's version; those of version 1 if it has no files of either.
func Memory(root, path string) MemoryFiles {
	dir := filepath.Join(root, path)
	if _, err := os.Stat(filepath.Join(dir, "memory.current")); err == nil {
		return MemoryFiles{
			Current: filepath.Join(dir, "memory.current"), Peak: filepath.Join(dir, "memory.peak"),
			Limit: filepath.Join(dir, "memory.max"), Events: filepath.Join(dir, "memory.events"),
			Stat: filepath.Join(dir, "memory.stat"), Swap: filepath.Join(dir, "memory.swap.current"),
			InactiveFile: "inactive_file",
		}
	}
	dir = filepath.Join(root, "memory", path)
	return MemoryFiles{
		Current: filepath.Join(dir, "memory.usage_in_bytes"), Peak: filepath.Join(dir, "memory.max_usage_in_bytes"),
		Limit: filepath.Join(dir, "memory.limit_in_bytes"), Events: filepath.Join(dir, "memory.oom_control"),
		Stat: filepath.Join(dir, "memory.stat"), Swap: filepath.Join(dir, "memory.memsw.usage_in_bytes"),
		InactiveFile: "total_inactive_file", SwapAndRAM: true,
	}
}

// Read reads a file of a cgroup, without surrounding white space. The error is fs.ErrNotExist also if the cgroup was
// removed meanwhile.
func Read(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return read(f)
}

func read(f *os.File) (string, error) {
	text, err := io.ReadAll(f)
	if errors.Is(err, syscall.ENODEV) { // removed after the file was opened
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return strings.TrimSpace(string(text)), err
}

// Number reads a file that holds one number.
func Number(file string) (uint64, error) {
	text, err := Read(file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// Field reads a number from a file of lines "NAME NUMBER".
func Field(file, name string) (uint64, error) {
	text, err := Read(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && key == name {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %s: %w", file, name, err)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s: %w %s", file, ErrNoField, name)
}
