// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"encoding/binary"
	"fmt"
)

// TagKey is a key of the tags of encapsulated packets, the same on all nodes.
type TagKey [16]byte

// TagKeys are the keys of tags that are valid at a time: that with the number First, and the next one.
type TagKeys struct {
	First uint64
	Keys  [2]TagKey
	// Second says that packets of this node are tagged with the second key; otherwise with the first.
	Second bool
}

// tagSlots is the number of keys in the gate's map. A key's slot is its number modulo this.
const tagSlots = uint64(gateLimitTAG_SLOTS)

// SetTagKeys replaces the keys of tags. A packet whose tag is not of one of these keys is dropped and counted
// (bad_tag). Keys outlive this process. Before the first ones, no packet is tagged.
func (g *Gate) SetTagKeys(k TagKeys) error {
	var set gateTagKeySet
	if err := g.objs.TagKeys.Lookup(uint32(0), &set); err != nil {
		return fmt.Errorf("reading the keys of tags from the gate's map: %w", err)
	}
	// The programs may read at any time: a key is complete before it is valid, and valid before it is used.
	put := func() error {
		if err := g.objs.TagKeys.Put(uint32(0), set); err != nil {
			return fmt.Errorf("writing the keys of tags to the gate's map: %w", err)
		}
		return nil
	}
	var valid uint32
	for i, key := range k.Keys {
		slot := (k.First + uint64(i)) % tagSlots
		words := [2]uint64{binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])}
		if set.Key[slot] != words {
			set.Key[slot] = words
			set.Valid &^= 1 << slot
		}
		valid |= 1 << slot
	}
	if err := put(); err != nil {
		return err
	}
	set.Valid = valid
	if err := put(); err != nil {
		return err
	}
	send := k.First
	if k.Second {
		send++
	}
	set.Send, set.First = 1+uint32(send%tagSlots), k.First
	return put()
}

// FirstTagKey returns the number of the first valid key of tags, which may be from an earlier daemon; 0 if there is
// none.
func (g *Gate) FirstTagKey() (uint64, error) {
	var set gateTagKeySet
	if err := g.objs.TagKeys.Lookup(uint32(0), &set); err != nil {
		return 0, fmt.Errorf("reading the keys of tags from the gate's map: %w", err)
	}
	return set.First, nil
}
