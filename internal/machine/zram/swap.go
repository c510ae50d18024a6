// SPDX-License-Identifier: Apache-2.0

package zram

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The header of a swap area is its first page (union swap_header in the kernel's include/linux/swap.h).
const (
	headerInfo  = 1024 // version, last page, number of bad pages: each 4 bytes
	headerID    = headerInfo + 12
	headerLabel = headerID + 16
	labelSize   = 16
	magic       = "SWAPSPACE2" // at the end of the page
	label       = "wangell"
)

// swapHeader returns the header of a swap area of size bytes, and the area's UUID.
func swapHeader(size int64, pageSize int) (page []byte, id [16]byte) {
	page = make([]byte, pageSize)
	_, _ = rand.Read(id[:])                         // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // RFC 9562, version 4
	binary.NativeEndian.PutUint32(page[headerInfo:], 1)
	binary.NativeEndian.PutUint32(page[headerInfo+4:], uint32(size/int64(pageSize)-1))
	copy(page[headerID:], id[:])
	copy(page[headerLabel:headerLabel+labelSize], label)
	copy(page[pageSize-len(magic):], magic)
	return page, id
}

// swapID returns the UUID of the swap area with a header; false if this package did not make it.
func swapID(page []byte) (id [16]byte, ok bool) {
	copy(id[:], page[headerID:])
	name := page[headerLabel : headerLabel+len(label)+1]
	return id, string(page[len(page)-len(magic):]) == magic && string(name) == label+"\x00"
}

// isSwap reports whether a device is in use as swap (proc_swaps(5)).
func isSwap(device string) bool {
	text, err := os.ReadFile("/proc/swaps")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " "); name == device {
			return true
		}
	}
	return false
}

// swapPriority is above the priorities that the kernel assigns by itself, which are negative.
const swapPriority = 100

const swapFlagPrefer = 0x8000 // SWAP_FLAG_PREFER of swapon(2), followed by a priority

func swapon(device string) error {
	return swapCall(unix.SYS_SWAPON, "swapon", device, swapFlagPrefer|swapPriority)
}

// swapoff succeeds if the device is not in use as swap.
func swapoff(device string) error {
	err := swapCall(unix.SYS_SWAPOFF, "swapoff", device, 0)
	if errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

func swapCall(number uintptr, name, device string, flags uintptr) error {
	path, err := unix.BytePtrFromString(device)
	if err != nil {
		return err
	}
	for {
		_, _, errno := unix.Syscall(number, uintptr(unsafe.Pointer(path)), flags, 0)
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return os.NewSyscallError(name, errno)
	}
}
