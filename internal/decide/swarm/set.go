// SPDX-License-Identifier: Apache-2.0

// Package swarm decides which pieces of blobs a node fetches next, and from where: from other nodes, rarest pieces
// first, or from the registry. Its functions are pure: time and chance are parameters.
package swarm

import "math/bits"

const (
	// MaxPieces is the largest number of pieces of a blob, so that a set of them fits into 128 bytes.
	MaxPieces = 1024
	// minPiece is the size in bytes of the pieces of blobs up to 4 GiB. Larger blobs have larger pieces. The
	// measurements in docs/adr/0027 use this size.
	minPiece = 4 << 20
)

// PieceSize returns the size in bytes of all pieces but the last of a blob of size bytes.
func PieceSize(size uint64) uint64 {
	piece := uint64(minPiece)
	for (size-1)/piece >= MaxPieces && size > 0 {
		piece *= 2
	}
	return piece
}

// Pieces returns the number of pieces of a blob of size bytes, at least 1: an empty blob has an empty piece.
func Pieces(size uint64) int {
	if size == 0 {
		return 1
	}
	return int((size-1)/PieceSize(size)) + 1
}

// Bounds returns where a piece of a blob of size bytes begins, and how many bytes it has.
func Bounds(size uint64, piece int) (offset, length uint64) {
	offset = uint64(piece) * PieceSize(size)
	if offset >= size {
		return size, 0
	}
	return offset, min(PieceSize(size), size-offset)
}

// Set is a set of the pieces of a blob: piece i is bit i%8 of byte i/8. Pieces beyond its end are not in it.
type Set []byte

// NewSet returns an empty set with room for n pieces.
func NewSet(n int) Set { return make(Set, (n+7)/8) }

// FullSet returns the set of n pieces.
func FullSet(n int) Set {
	s := NewSet(n)
	for i := range n {
		s.Add(i)
	}
	return s
}

// Has reports whether a piece is in the set.
func (s Set) Has(i int) bool { return i/8 < len(s) && s[i/8]&(1<<(i%8)) != 0 }

// Add adds a piece, for which the set must have room.
func (s Set) Add(i int) { s[i/8] |= 1 << (i % 8) }

// Remove removes a piece.
func (s Set) Remove(i int) {
	if i/8 < len(s) {
		s[i/8] &^= 1 << (i % 8)
	}
}

// Len returns the number of pieces in the set.
func (s Set) Len() (n int) {
	for _, b := range s {
		n += bits.OnesCount8(b)
	}
	return n
}

// Without returns the number of pieces that are in s and not in o.
func (s Set) Without(o Set) (n int) {
	for i, b := range s {
		if i < len(o) {
			b &^= o[i]
		}
		n += bits.OnesCount8(b)
	}
	return n
}

// Fits reports whether the set has no piece beyond the first n.
func (s Set) Fits(n int) bool {
	for i := n; i < 8*len(s); i++ {
		if s.Has(i) {
			return false
		}
	}
	return len(s) <= (n+7)/8
}
