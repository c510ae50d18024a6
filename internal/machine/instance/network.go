// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// ownNetns returns the inode of this process's network namespace.
func ownNetns() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("own network namespace: %w", err)
	}
	return st.Ino, nil
}

// checkLoopback returns an error if lo is down in this network namespace: controller and daemon communicate over it.
func checkLoopback() error {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return fmt.Errorf("device lo: %w", err)
	}
	if lo.Flags&net.FlagUp == 0 {
		return errors.New("device lo is down, but the controller and the daemon communicate over 127.0.0.1: " +
			"set it up (ip link set lo up)")
	}
	return nil
}

// checkInterfaces returns an error for each device that does not exist.
func checkInterfaces(names []string) error {
	var errs []error
	for _, name := range names {
		if _, err := net.InterfaceByName(name); err != nil {
			errs = append(errs, fmt.Errorf("--interface %s: no such device in this network namespace: see 'ip link'", name))
		}
	}
	return errors.Join(errs...)
}
