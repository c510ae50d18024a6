// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// Types of fields.
var (
	u8     = &btf.Int{Name: "unsigned char", Size: 1}
	u16    = &btf.Int{Name: "unsigned short", Size: 2}
	u32    = &btf.Int{Name: "unsigned int", Size: 4}
	s32    = &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	u64    = &btf.Int{Name: "unsigned long long", Size: 8}
	be32   = &btf.Typedef{Name: "__be32", Type: &btf.Typedef{Name: "__u32", Type: u32}}
	colors = &btf.Enum{Name: "color", Size: 4, Values: []btf.EnumValue{{Name: "RED", Value: 1}}}
)

// field is a field of a structure; the offsets follow from the order.
type field struct {
	name string
	t    btf.Type
}

// packed returns a structure of fields without gaps.
func packed(fields ...field) *btf.Struct {
	s := &btf.Struct{Name: "s"}
	for _, f := range fields {
		size, err := btf.Sizeof(f.t)
		if err != nil {
			panic(err)
		}
		s.Members = append(s.Members, btf.Member{Name: f.name, Type: f.t, Offset: btf.Bits(s.Size * 8)})
		s.Size += uint32(size)
	}
	return s
}

func union(fields ...field) *btf.Union {
	u := &btf.Union{Name: "u"}
	for _, f := range fields {
		size, _ := btf.Sizeof(f.t)
		u.Members = append(u.Members, btf.Member{Name: f.name, Type: f.t})
		u.Size = max(u.Size, uint32(size))
	}
	return u
}

func array(n uint32, of btf.Type) *btf.Array { return &btf.Array{Index: u32, Type: of, Nelems: n} }

func TestFieldsAreCarriedByName(t *testing.T) {
	inner := packed(field{"x", u8}, field{"y", u8})
	moved := packed(field{"y", u8}, field{"z", u16}, field{"x", u8})
	for _, c := range []struct {
		name           string
		from, to       btf.Type
		in, out        string // bytes
		added, dropped []string
		identical      bool
	}{
		{name: "the same", from: packed(field{"a", u32}, field{"b", u16}), to: packed(field{"a", u32}, field{"b", u16}),
			in: "aaaabb", out: "aaaabb", identical: true},
		{name: "moved", from: packed(field{"a", u32}, field{"b", u16}), to: packed(field{"b", u16}, field{"a", u32}),
			in: "aaaabb", out: "bbaaaa"},
		{name: "added", from: packed(field{"a", u16}, field{"b", u16}),
			to: packed(field{"a", u16}, field{"c", u32}, field{"b", u16}), in: "aabb",
			out: "aa\x00\x00\x00\x00bb", added: []string{"c"}},
		{name: "removed", from: packed(field{"a", u16}, field{"c", u32}, field{"b", u16}),
			to: packed(field{"a", u16}, field{"b", u16}), in: "aaccccbb", out: "aabb", dropped: []string{"c"}},
		{name: "renamed in its place", from: packed(field{"a", u16}), to: packed(field{"b", u16}), in: "aa", out: "\x00\x00",
			added: []string{"b"}, dropped: []string{"a"}},
		{name: "padding used up", from: packed(field{"a", u16}, field{"pad", u16}),
			to: packed(field{"a", u16}, field{"b", u8}, field{"pad", u8}), in: "aa\x00\x00", out: "aa\x00\x00",
			added: []string{"b"}},
		{name: "nested", from: packed(field{"n", inner}, field{"a", u8}), to: packed(field{"a", u8}, field{"n", moved}),
			in: "xya", out: "ay\x00\x00x", added: []string{"n.z"}},
		{name: "array of structures", from: packed(field{"n", array(2, inner)}), to: packed(field{"n", array(2, moved)}),
			in: "xyXY", out: "y\x00\x00xY\x00\x00X", added: []string{"n[].z"}},
		{name: "array that has grown", from: packed(field{"n", array(2, u16)}, field{"a", u8}),
			to: packed(field{"n", array(3, u16)}, field{"a", u8}), in: "1122a", out: "1122\x00\x00a"},
		{name: "union that is the same", from: packed(field{"a", u8}, field{"u", union(field{"p", u32}, field{"q", u8})}),
			to: packed(field{"u", union(field{"p", u32}, field{"q", u8})}, field{"a", u8}), in: "auuuu", out: "uuuua"},
		{name: "other name of the type", from: packed(field{"a", u32}),
			to: packed(field{"a", &btf.Typedef{Name: "__u32", Type: u32}}), in: "aaaa", out: "aaaa", identical: true},
		{name: "further number of an enum", from: packed(field{"a", colors}),
			to: packed(field{"a", &btf.Enum{Name: "color", Size: 4,
				Values: []btf.EnumValue{{Name: "RED", Value: 1}, {Name: "BLUE", Value: 2}}}}),
			in: "aaaa", out: "aaaa", identical: true},
		{name: "not a structure", from: u64, to: u64, in: "12345678", out: "12345678", identical: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := newConversion(c.from, c.to)
			if err != nil {
				t.Fatal(err)
			}
			in, want := []byte(c.in), []byte(c.out)
			out := bytes.Repeat([]byte{0xff}, got.size) // what was there before
			got.apply(out, in)
			if !bytes.Equal(out, want) {
				t.Errorf("%q became %q, want %q", in, out, want)
			}
			if !slices.Equal(got.added, c.added) || !slices.Equal(got.dropped, c.dropped) || got.identical != c.identical {
				t.Errorf("added %q, dropped %q, identical %v", got.added, got.dropped, got.identical)
			}
		})
	}
}

func TestFieldsThatMeanSomethingElseAreRefused(t *testing.T) {
	bits := packed(field{"a", u32})
	bits.Members[0].BitfieldSize = 3
	for _, c := range []struct {
		name     string
		from, to btf.Type
		want     string // in the error
	}{
		{"widened", packed(field{"a", u32}), packed(field{"a", u64}), "a: type has changed"},
		{"narrowed", packed(field{"a", u32}), packed(field{"a", u16}), "a: type has changed"},
		{"signed", packed(field{"a", u32}), packed(field{"a", s32}), "a: type has changed"},
		{"other byte order", packed(field{"a", u32}), packed(field{"a", be32}), "a: type has changed"},
		{"enum instead of a number", packed(field{"a", u32}), packed(field{"a", colors}), "a: type has changed"},
		{"structure instead of a number", packed(field{"a", u32}), packed(field{"a", packed(field{"b", u32})}), "a: type"},
		{"another number of an enum", packed(field{"a", colors}),
			packed(field{"a", &btf.Enum{Size: 4, Values: []btf.EnumValue{{Name: "RED", Value: 2}}}}), "a: RED was 1 and is 2"},
		{"nested", packed(field{"n", array(2, packed(field{"a", u32}))}),
			packed(field{"n", array(2, packed(field{"a", u64}))}), "n[].a: type has changed"},
		{"array that has shrunk", packed(field{"n", array(3, u8)}), packed(field{"n", array(2, u8)}),
			"n: had 3 elements and has 2"},
		{"union with another member", packed(field{"u", union(field{"p", u32})}),
			packed(field{"u", union(field{"p", u32}, field{"q", u8})}), "u: type has changed"},
		{"bit field", bits, bits, "bit fields"},
		{"pointer", packed(field{"a", &btf.Pointer{Target: u8}}), packed(field{"a", &btf.Pointer{Target: u8}}), "a: type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newConversion(c.from, c.to)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// Two keys that differ only in a field that is gone would become one.
func TestKeysLoseNoField(t *testing.T) {
	c, err := newConversion(packed(field{"a", u32}, field{"b", u32}), packed(field{"a", u32}))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.isKey(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", []string{"b"})) {
		t.Error(err)
	}
}
