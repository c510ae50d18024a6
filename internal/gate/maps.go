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

// view is an array map that is mapped into memory, so that it is read and written without system calls. Fields that the
// programs use at the same time must be accessed with sync/atomic.
type view[T any] struct {
	mem   []byte
	items []T
}

// newView maps an array map into memory.
func newView[T any](m *ebpf.Map) (*view[T], error) {
	var t T
	size := int(unsafe.Sizeof(t))
	if uint32(size) != m.ValueSize() || size%8 != 0 {
		return nil, fmt.Errorf("map %v has values of %d bytes, the generated type has %d: run \"make generate\"",
			m, m.ValueSize(), size)
	}
	n := int(m.MaxEntries())
	mem, err := unix.Mmap(m.FD(), 0, n*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mapping %v into memory: %w", m, err)
	}
	return &view[T]{mem: mem, items: unsafe.Slice((*T)(unsafe.Pointer(&mem[0])), n)}, nil
}

// at returns an entry; it panics if the index is out of range.
func (v *view[T]) at(i uint32) *T { return &v.items[i] }

// close unmaps the map. It accepts nil.
func (v *view[T]) close() error {
	if v == nil || v.mem == nil {
		return nil
	}
	mem := v.mem
	v.mem, v.items = nil, nil
	return unix.Munmap(mem)
}

// ignoreMissing drops the error that a map has no such entry.
func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// mapInfo is the beginning of struct bpf_map_info (<linux/bpf.h>).
type mapInfo struct {
	_           [64]byte
	btf         uint32
	keyTypeID   uint32
	valueTypeID uint32
	_           uint32
}

// errNoTypes is returned for maps that were created without type information, such as ring buffers.
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
