// SPDX-License-Identifier: Apache-2.0

// Package kernelfs finds out which types of file systems the kernel can mount.
package kernelfs

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
)

// Known is the file that lists the types that the kernel can mount now: proc_filesystems(5).
const Known = "/proc/filesystems"

// Ways in which a kernel has a type of file system.
const (
	None    = ""
	BuiltIn = "in the kernel"
	Module  = "module, loaded when needed"
)

// Find returns how the running kernel, whose release is that of uname -r, has a type of file system. It does not try to
// mount one, which would load the module.
func Find(name, release string) (string, error) {
	data, err := os.ReadFile(Known)
	if err != nil {
		return None, err
	}
	if listed(data, name) {
		return BuiltIn, nil
	}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		data, err := os.ReadFile(filepath.Join("/lib/modules", release, list))
		if err == nil && hasModule(data, name) {
			return Module, nil
		}
	}
	return None, nil
}

// listed searches proc_filesystems(5), where each line is "nodev" or nothing, a tab, and a name.
func listed(data []byte, name string) bool {
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		if _, have, ok := strings.Cut(s.Text(), "\t"); ok && have == name {
			return true
		}
	}
	return false
}

// hasModule searches modules.dep or modules.builtin (modprobe(8)), where each line begins with a path.
func hasModule(data []byte, name string) bool {
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		path, _, _ := strings.Cut(s.Text(), ":")
		if base := filepath.Base(path); strings.HasPrefix(base, name+".ko") {
			return true
		}
	}
	return false
}
