// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// noChecksumOffload turns transmit checksum offload off for a device in the calling thread's namespace, by one
// SIOCETHTOOL call (netdevice(7)) with a struct ethtool_value (linux/ethtool.h).
func noChecksumOffload(device string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("turn checksum offload of %s off: %w", device, err)
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_STXCSUM}
	var request struct { // struct ifreq: the name, then a union of 24 bytes of which a pointer is used
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	request.data = unsafe.Pointer(&value)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return fmt.Errorf("turn checksum offload of %s off: %w", device, errno)
	}
	return nil
}
