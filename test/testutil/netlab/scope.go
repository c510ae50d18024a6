// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Scope selects the parts of the machine that a Snapshot covers, so that concurrent activity does not change it.
type Scope struct {
	// Paths are state and run folders. They cover mounts and pins below them, and processes whose command line names
	// one of them, with their descendants.
	Paths []string
	// Devices are prefixes of device names in the caller's namespace.
	Devices []string
	// Routes covers addresses, routes and policy rules (IPv4 and IPv6) of the caller's namespace.
	Routes bool
	// Namespaces are prefixes of the names of network namespaces in Dir.
	Namespaces []string
	// Cgroups are parts of cgroup paths.
	Cgroups []string
	// BPF are prefixes of the kernel's names (at most 15 bytes) of eBPF programs and maps. They cover the whole machine,
	// so another process must not load the same programs meanwhile.
	BPF []string
	// OwnProcess covers the eBPF objects that this process holds open, and its descendants.
	OwnProcess bool
}

// Snapshot is the set of things in a Scope at one time, each named with its kind ("mount /run/x").
type Snapshot map[string]bool

func hasPrefix(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func contains(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// under reports whether path is one of dirs or below one.
func under(path string, dirs []string) bool {
	for _, d := range dirs {
		if d = filepath.Clean(d); path == d || strings.HasPrefix(path, d+"/") {
			return true
		}
	}
	return false
}

// ignoreGone lets a walk continue when a file disappears during it.
func ignoreGone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
