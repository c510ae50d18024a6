// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"
	"reflect"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// carriage copies the entries of a map into a map of another layout or size.
type carriage struct {
	name       string
	from, to   *ebpf.Map
	key, value conversion
	restarts   bool // its entries are not carried
}

// newCarriage compares a map with the map that a program expects in its place. It fails if the entries cannot be
// carried.
func newCarriage(name string, from *ebpf.Map, spec *ebpf.MapSpec) (carriage, error) {
	c := carriage{name: name, from: from}
	if from.Type() != spec.Type || from.Flags() != spec.Flags {
		return c, fmt.Errorf("was of type %v with flags %#x, is of type %v with flags %#x",
			from.Type(), from.Flags(), spec.Type, spec.Flags)
	}
	if isArray(spec.Type) && from.MaxEntries() > spec.MaxEntries {
		return c, fmt.Errorf("had %d entries and has %d", from.MaxEntries(), spec.MaxEntries)
	}
	key, value, err := mapTypes(from)
	if err != nil || spec.Key == nil || spec.Value == nil {
		// Without type information, entries of the same size count as the same.
		if errors.Is(err, errNoTypes) && from.KeySize() == spec.KeySize && from.ValueSize() == spec.ValueSize {
			c.key = conversion{size: int(spec.KeySize), identical: true}
			c.value = conversion{size: int(spec.ValueSize), identical: true}
			return c, nil
		}
		return c, fmt.Errorf("entries had %d + %d bytes and have %d + %d: %w",
			from.KeySize(), from.ValueSize(), spec.KeySize, spec.ValueSize, err)
	}
	if c.key, err = newConversion(key, spec.Key); err == nil {
		err = c.key.isKey()
	}
	if err != nil {
		return c, fmt.Errorf("keys: %w", err)
	}
	if c.value, err = newConversion(value, spec.Value); err != nil {
		return c, fmt.Errorf("values: %w", err)
	}
	return c, nil
}

// identical reports whether the map can be used as it is.
func (c *carriage) identical(spec *ebpf.MapSpec) bool {
	return c.key.identical && c.value.identical && c.from.MaxEntries() == spec.MaxEntries
}

func isArray(t ebpf.MapType) bool { return t == ebpf.Array || t == ebpf.PerCPUArray }

// batchBytes is how much of a map is in this process's memory at once. A batch has at least minBatch entries, as the
// kernel reads a bucket of a hash map as a whole.
const (
	batchBytes = 1 << 20
	minBatch   = 256
)

// byteArrays returns a slice of n arrays of bytes, the form in which the map functions take entries, and the memory
// behind them.
func byteArrays(n, size int) (slice reflect.Value, mem []byte) {
	array := reflect.ArrayOf(size, reflect.TypeFor[byte]())
	slice = reflect.MakeSlice(reflect.SliceOf(array), n, n)
	return slice, unsafe.Slice((*byte)(slice.UnsafePointer()), n*size)
}

// errOutOfTime is returned when a map was not read to its end.
var errOutOfTime = errors.New("out of time")

// batch is memory for a number of entries of a map.
type batch struct {
	keys, values         reflect.Value
	keyBytes, valueBytes []byte
	cpus                 int // values of each entry
}

func newBatch(n, cpus, keySize, valueSize int) *batch {
	b := &batch{cpus: cpus}
	b.keys, b.keyBytes = byteArrays(n, keySize)
	b.values, b.valueBytes = byteArrays(n*cpus, valueSize)
	return b
}

// part returns the entries from one index up to, but not including, another.
func (b *batch) part(from, to int) (keys, values any) {
	return b.keys.Slice(from, to).Interface(), b.values.Slice(from*b.cpus, to*b.cpus).Interface()
}

// key and value return an entry's key and value. The map must have one value for all CPUs.
func (b *batch) key(i int) []byte {
	return b.keyBytes[i*b.keys.Type().Elem().Len():][:b.keys.Type().Elem().Len()]
}
func (b *batch) value(i int) []byte {
	return b.valueBytes[i*b.values.Type().Elem().Len():][:b.values.Type().Elem().Len()]
}

// each converts all entries and calls f with one batch of them at a time, until a deadline.
func (c *carriage) each(deadline time.Time, f func(b *batch, n int) error) error {
	cpus := 1
	if c.from.Type() == ebpf.PerCPUArray {
		var err error
		if cpus, err = ebpf.PossibleCPU(); err != nil {
			return err
		}
	}
	keySize, valueSize := int(c.from.KeySize()), int(c.from.ValueSize())
	size := max(batchBytes/(keySize+valueSize*cpus), minBatch)
	in, out := newBatch(size, cpus, keySize, valueSize), newBatch(size, cpus, c.key.size, c.value.size)
	var cursor ebpf.MapBatchCursor
	for end := false; !end; {
		if time.Now().After(deadline) {
			return errOutOfTime
		}
		n, err := c.from.BatchLookup(&cursor, in.keys.Interface(), in.values.Interface(), nil)
		if end = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !end {
			return fmt.Errorf("reading: %w", err)
		}
		convertAll(&c.key, out.keyBytes, in.keyBytes, keySize, n)
		convertAll(&c.value, out.valueBytes, in.valueBytes, valueSize, n*cpus)
		if n == 0 {
			continue
		}
		if err := f(out, n); err != nil {
			return err
		}
	}
	return nil
}

// convertAll converts n keys or values.
func convertAll(c *conversion, to, from []byte, fromSize, n int) {
	if c.identical {
		copy(to, from[:n*fromSize])
		return
	}
	for i := range n {
		c.apply(to[i*c.size:(i+1)*c.size], from[i*fromSize:(i+1)*fromSize])
	}
}

// keep moves the entries with selected values to the front, and returns their number.
func (b *batch) keep(n int, selected func(value []byte) bool) int {
	kept := 0
	for i := range n {
		if !selected(b.value(i)) {
			continue
		}
		if i != kept {
			copy(b.key(kept), b.key(i))
			copy(b.value(kept), b.value(i))
		}
		kept++
	}
	return kept
}

// carried counts what became of a map's entries.
type carried struct{ copied, noRoom int }

// write writes the first n entries of a batch, except entries for which there is no room.
func (c *carriage) write(b *batch, n int, sum *carried) error {
	for at := 0; at < n; {
		keys, values := b.part(at, n)
		done, err := c.to.BatchUpdate(keys, values, nil)
		sum.copied += done
		at += done
		if err == nil {
			break
		}
		if !errors.Is(err, unix.E2BIG) && !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("writing: %w", err)
		}
		sum.noRoom++ // the entry at which the kernel stopped
		at++
	}
	return nil
}

// copy copies all entries.
func (c *carriage) copy(deadline time.Time) (sum carried, err error) {
	err = c.each(deadline, func(b *batch, n int) error { return c.write(b, n, &sum) })
	return sum, err
}
