// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"wangell.loutres.me/internal/base/atomicfile"
)

// hostsFile is the file that makes containerd ask the mirror before the registry. It applies to registries without a
// settings folder of their own. containerd reads it at each pull.
const hostsFile = "_default/hosts.toml"

// hostsMark is the first line of a file that the daemon has written.
const hostsMark = "# Written by the Wangell daemon, which removes it when it is uninstalled.\n"

// ErrForeignHosts is returned for settings that somebody else has made.
var ErrForeignHosts = errors.New("has other settings: add the mirror to them by hand, see docs/images/peers.md")

// InstallHosts makes containerd ask the mirror at an address. dir is the folder with the settings of registries.
func InstallHosts(dir string, mirror netip.AddrPort) error {
	file := filepath.Join(dir, hostsFile)
	ours, err := ourHosts(file)
	if err == nil && !ours {
		return fmt.Errorf("%s %w", file, ErrForeignHosts)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("settings of registries: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("settings of registries: %w", err)
	}
	return atomicfile.Write(file, []byte(hostsMark+HostsEntry(mirror)))
}

// HostsEntry returns the mirror's entry of a hosts.toml. Tags are resolved by the registry.
func HostsEntry(mirror netip.AddrPort) string {
	return fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\"]\n", mirror)
}

// RemoveHosts undoes InstallHosts.
func RemoveHosts(dir string) error {
	file := filepath.Join(dir, hostsFile)
	if ours, err := ourHosts(file); errors.Is(err, fs.ErrNotExist) || err == nil && !ours {
		return nil
	} else if err != nil {
		return fmt.Errorf("settings of registries: %w", err)
	}
	if err := os.Remove(file); err != nil {
		return fmt.Errorf("settings of registries: %w", err)
	}
	_ = os.Remove(filepath.Dir(file)) // unless there is something else in it
	return nil
}

func ourHosts(file string) (bool, error) {
	text, err := os.ReadFile(file)
	return bytes.HasPrefix(text, []byte(hostsMark)), err
}
