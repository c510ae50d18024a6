// SPDX-License-Identifier: Apache-2.0

// Package host reads what the machine has: types of file systems, and mounts.
package host

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
)

// KnownFilesystems is the file that lists the types that the kernel can mount now: proc_filesystems(5).
const KnownFilesystems = "/proc/filesystems"

// Ways in which a kernel has a type of file system.
const (
	Missing = ""
	BuiltIn = "in the kernel"
	Module  = "module, loaded when needed"
)

// FindFilesystem returns how the running kernel provides a type of file system: BuiltIn, Module or Missing. release
// is what uname -r prints. It does not try to mount one, which would load the module.
func FindFilesystem(name, release string) (string, error) {
	data, err := os.ReadFile(KnownFilesystems)
	if err != nil {
		return Missing, err
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
	return Missing, nil
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
