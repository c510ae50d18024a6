// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/btf"
)

// span is a range of bytes with the same meaning in both layouts.
type span struct{ from, to, size int }

// conversion converts keys or values of one layout to another.
type conversion struct {
	spans     []span
	size      int      // of the result, bytes
	added     []string // fields that only the result has; they are zero
	dropped   []string // fields that the result lacks
	identical bool     // both layouts are the same
}

// apply writes the conversion of from to a buffer, which has the size of the result.
func (c *conversion) apply(to, from []byte) {
	clear(to)
	for _, s := range c.spans {
		copy(to[s.to:s.to+s.size], from[s.from:])
	}
}

// newConversion compares two layouts field by field. Fields are the same if they have the same name and type. It
// fails if that would change the meaning of a field: if its type differs, if an array lost elements, or if the fields
// cannot be told apart.
func newConversion(from, to btf.Type) (conversion, error) {
	var c conversion
	size, err := btf.Sizeof(to)
	if err != nil {
		return c, fmt.Errorf("size of %v: %w", to, err)
	}
	c.size = size
	if err := c.match(from, to, span{}, ""); err != nil {
		return c, err
	}
	was, err := btf.Sizeof(from)
	if err != nil {
		return c, fmt.Errorf("size of %v: %w", from, err)
	}
	c.identical = was == size && len(c.added)+len(c.dropped) == 0
	for _, s := range c.spans {
		c.identical = c.identical && s.from == s.to
	}
	return c, nil
}

// match adds the common parts of two types at the offsets. path names the field; empty for the whole.
func (c *conversion) match(from, to btf.Type, at span, path string) error {
	if a, b := byteOrder(from), byteOrder(to); a != b {
		return changed(path, from, to)
	}
	from, to = btf.UnderlyingType(from), btf.UnderlyingType(to)
	switch to := to.(type) {
	case *btf.Struct:
		if from, ok := from.(*btf.Struct); ok {
			return c.matchMembers(from, to, at, path)
		}
	case *btf.Array:
		if from, ok := from.(*btf.Array); ok {
			return c.matchElements(from, to, at, path)
		}
	case *btf.Union:
		// Nothing tells which member of a union is valid.
		if from, ok := from.(*btf.Union); ok && sameUnion(from, to) {
			c.keep(at, int(to.Size))
			return nil
		}
	case *btf.Int:
		if from, ok := from.(*btf.Int); ok && from.Size == to.Size && from.Encoding == to.Encoding {
			c.keep(at, int(to.Size))
			return nil
		}
	case *btf.Enum:
		if from, ok := from.(*btf.Enum); ok && from.Size == to.Size && from.Signed == to.Signed {
			c.keep(at, int(to.Size))
			return sameNames(from, to, path)
		}
	}
	return changed(path, from, to)
}

// keep adds a range of bytes. A range that follows the last one extends it.
func (c *conversion) keep(at span, size int) {
	if n := len(c.spans); n > 0 {
		last := &c.spans[n-1]
		if last.from+last.size == at.from && last.to+last.size == at.to {
			last.size += size
			return
		}
	}
	c.spans = append(c.spans, span{at.from, at.to, size})
}

// padding is the name of fields that are always zero. They change freely as other fields need their place.
const padding = "pad"

// matchMembers matches the fields of two structures by name.
func (c *conversion) matchMembers(from, to *btf.Struct, at span, path string) error {
	was, err := byName(from, path)
	if err != nil {
		return err
	}
	is, err := byName(to, path)
	if err != nil {
		return err
	}
	for _, m := range to.Members {
		if m.Name == padding {
			continue
		}
		name := join(path, m.Name)
		old, ok := was[m.Name]
		if !ok {
			c.added = append(c.added, name)
			continue
		}
		inner := span{from: at.from + int(old.Offset.Bytes()), to: at.to + int(m.Offset.Bytes())}
		if err := c.match(old.Type, m.Type, inner, name); err != nil {
			return err
		}
	}
	for _, m := range from.Members {
		if _, ok := is[m.Name]; !ok && m.Name != padding {
			c.dropped = append(c.dropped, join(path, m.Name))
		}
	}
	return nil
}

// matchElements matches arrays. One that has grown has zeros at its end.
func (c *conversion) matchElements(from, to *btf.Array, at span, path string) error {
	if from.Nelems > to.Nelems {
		return fmt.Errorf("%s: had %d elements and has %d", orValue(path), from.Nelems, to.Nelems)
	}
	was, err := btf.Sizeof(from.Type)
	if err != nil {
		return fmt.Errorf("%s: %w", orValue(path), err)
	}
	is, err := btf.Sizeof(to.Type)
	if err != nil {
		return fmt.Errorf("%s: %w", orValue(path), err)
	}
	added, dropped := len(c.added), len(c.dropped)
	for i := range int(from.Nelems) {
		if err := c.match(from.Type, to.Type, span{from: at.from + i*was, to: at.to + i*is}, path+"[]"); err != nil {
			return err
		}
		if i == 0 {
			added, dropped = len(c.added), len(c.dropped)
		}
		c.added, c.dropped = c.added[:added], c.dropped[:dropped] // once for all elements
	}
	return nil
}

// byName returns the members of a structure.
func byName(s *btf.Struct, path string) (map[string]btf.Member, error) {
	members := map[string]btf.Member{}
	for _, m := range s.Members {
		if m.Name == "" || m.BitfieldSize != 0 {
			return nil, fmt.Errorf("%s: structure %q has bit fields or fields without a name", orValue(path), s.Name)
		}
		members[m.Name] = m
	}
	return members, nil
}

// sameUnion reports whether two unions have the same members.
func sameUnion(from, to *btf.Union) bool {
	if from.Size != to.Size || len(from.Members) != len(to.Members) {
		return false
	}
	for i, m := range to.Members {
		old := from.Members[i]
		c, err := newConversion(old.Type, m.Type)
		if err != nil || !c.identical || old.Name != m.Name || old.Offset != m.Offset || m.BitfieldSize != 0 {
			return false
		}
	}
	return true
}

// sameNames returns an error if a name of an enumeration has another value than before.
func sameNames(from, to *btf.Enum, path string) error {
	was := map[string]uint64{}
	for _, v := range from.Values {
		was[v.Name] = v.Value
	}
	for _, v := range to.Values {
		if old, ok := was[v.Name]; ok && old != v.Value {
			return fmt.Errorf("%s: %s was %d and is %d", orValue(path), v.Name, old, v.Value)
		}
	}
	return nil
}

// byteOrder returns the name of a type that states its byte order; empty for types in the machine's own.
func byteOrder(t btf.Type) string {
	for {
		def, ok := t.(*btf.Typedef)
		if !ok {
			return ""
		}
		switch def.Name {
		case "__be16", "__be32", "__be64", "__le16", "__le32", "__le64":
			return def.Name
		}
		t = def.Type
	}
}

// isKey returns an error if a conversion, of keys, could make different keys equal.
func (c *conversion) isKey() error {
	if len(c.dropped) > 0 {
		return fmt.Errorf("keys lost %q", c.dropped)
	}
	return nil
}

var errTypeChanged = errors.New("type has changed")

func changed(path string, from, to btf.Type) error {
	return fmt.Errorf("%s: %w: was %v, is %v", orValue(path), errTypeChanged, from, to)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func orValue(path string) string {
	if path == "" {
		return "whole"
	}
	return path
}
