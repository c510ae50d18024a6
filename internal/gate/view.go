// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
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
