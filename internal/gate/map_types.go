// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// mapInfo is the beginning of struct bpf_map_info (<linux/bpf.h>).
type mapInfo struct {
	_           [64]byte
	btf         uint32
	keyTypeID   uint32
	valueTypeID uint32
	_           uint32
}

// errNoTypes is returned for maps that were created without type information, as ring buffers are.
var errNoTypes = errors.New("the kernel knows no types of it")

// mapTypes returns the types of a map's keys and values, as declared by the program that created the map.
func mapTypes(m *ebpf.Map) (key, value btf.Type, err error) {
	var info mapInfo
	// struct bpf_attr of BPF_OBJ_GET_INFO_BY_FD
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(m.FD()), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr))
	runtime.KeepAlive(m)
	if errno != 0 {
		return nil, nil, fmt.Errorf("asking for the types of %v: %w", m, errno)
	}
	if info.btf == 0 || info.valueTypeID == 0 {
		return nil, nil, errNoTypes
	}
	h, err := btf.NewHandleFromID(btf.ID(info.btf))
	if err != nil {
		return nil, nil, fmt.Errorf("types of %v: %w", m, err)
	}
	defer h.Close()
	spec, err := h.Spec(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the types of %v: %w", m, err)
	}
	if key, err = spec.TypeByID(btf.TypeID(info.keyTypeID)); err != nil {
		return nil, nil, fmt.Errorf("type of the keys of %v: %w", m, err)
	}
	if value, err = spec.TypeByID(btf.TypeID(info.valueTypeID)); err != nil {
		return nil, nil, fmt.Errorf("type of the values of %v: %w", m, err)
	}
	return key, value, nil
}
