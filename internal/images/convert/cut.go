// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"slices"
	"strings"
	"time"
)

// block is the size of a block of a tar archive. A header takes up to entryBlocks, unless names are very long.
const (
	block       = 512
	entryBlocks = 3
)

// atom is a unit that must be in one piece: a file with its hard links, or a directory.
type atom struct {
	at    place
	inode *inode // or
	dir   *node
	piece int
}

// size returns how many bytes an atom takes in an archive, about.
func (a atom) size() int64 {
	if a.dir != nil {
		return entryBlocks * block
	}
	content := (a.inode.header.Size + block - 1) / block * block
	return content + int64(len(a.inode.names))*entryBlocks*block
}

func byPath(a, b *node) int { return strings.Compare(a.path(), b.path()) }

// pieces is a plan that assigns the entries of a run of layers to pieces.
type pieces struct {
	root   *node
	bottom bool // nothing is below the run
	atoms  map[place]*atom
	count  int
	left   []int // number of atoms by piece
}

// cut plans pieces of at most size bytes; 0: one piece. Files larger than that have a piece of their own.
func cut(root *node, bottom bool, size int64) *pieces {
	p := &pieces{root: root, bottom: bottom, atoms: map[place]*atom{}}
	var order []*atom
	seen := map[*inode]bool{}
	var walk func(n *node)
	walk = func(n *node) {
		switch {
		case n.inode != nil && !seen[n.inode]:
			seen[n.inode] = true
			order = append(order, &atom{at: n.inode.at, inode: n.inode})
		case n.isDir && n.dir != nil:
			order = append(order, &atom{at: n.at, dir: n})
		}
		for _, c := range n.children {
			walk(c)
		}
	}
	walk(root)
	slices.SortFunc(order, func(a, b *atom) int {
		return slices.Compare([]int{a.at.layer, a.at.entry}, []int{b.at.layer, b.at.entry})
	})
	var small int64
	for _, a := range order {
		p.atoms[a.at] = a
		if a.inode != nil {
			slices.SortFunc(a.inode.names, byPath)
		}
		if size == 0 || a.size() < size {
			small += a.size()
		}
	}
	// Pieces of equal size, so that no small rest needs a snapshot of its own.
	target := small
	if size > 0 && small > size {
		target = small / ((small + size - 1) / size)
	}
	open, filled := -1, int64(0)
	for _, a := range order {
		if size > 0 && a.size() >= size {
			a.piece = p.add()
		} else {
			if open < 0 || size > 0 && filled > 0 && (filled+a.size() > size || filled+a.size()/2 > target) {
				open, filled = p.add(), 0
			}
			a.piece = open
			filled += a.size()
		}
		p.left[a.piece]++
	}
	if p.count == 0 {
		p.add() // whiteouts, or an empty layer
	}
	return p
}

func (p *pieces) add() int {
	p.count++
	p.left = append(p.left, 0)
	return p.count - 1
}

// whiteouts returns the sorted names whose content in lower layers must be hidden: removed ones, and opaque
// directories.
func (p *pieces) whiteouts() (gone, opaque []*node) {
	if p.bottom {
		return nil, nil
	}
	var walk func(n *node)
	walk = func(n *node) {
		switch {
		case n.hides && !n.exists():
			gone = append(gone, n)
		case n.isDir && (n.hides || n.opaque):
			opaque = append(opaque, n)
		}
		for _, c := range n.children {
			walk(c)
		}
	}
	walk(p.root)
	slices.SortFunc(gone, byPath)
	slices.SortFunc(opaque, byPath)
	return gone, opaque
}

// bare returns the directories that only removed entries imply. Only lower layers have their metadata, so the layers
// that they come from cannot be joined unless they are at the bottom.
func (p *pieces) bare() (all []*node) {
	var walk func(n *node) (real bool)
	walk = func(n *node) bool {
		holds := false
		for _, c := range n.children {
			holds = walk(c) || holds
		}
		if n.implied && n.dir == nil && n.isDir && !holds {
			all = append(all, n)
		}
		return n.inode != nil || n.isDir && (n.dir != nil || n.implied)
	}
	walk(p.root)
	slices.SortFunc(all, byPath)
	return all
}

// outHeader returns the header to write: with another name, in PAX format, the only one that keeps everything.
func outHeader(from tar.Header, name string) *tar.Header {
	h := from
	h.Name, h.Format = name, tar.FormatPAX
	h.Xattrs = nil //nolint:staticcheck // a copy of what is in PAXRecords, which readers fill
	switch h.Typeflag {
	case tar.TypeDir:
		h.Name, h.Size, h.Linkname = name+"/", 0, ""
		if name == "" {
			h.Name = "./"
		}
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		h.Typeflag, h.Linkname = tar.TypeReg, ""
	default:
		h.Size = 0
	}
	return &h
}

// plainDir is the header of a directory that must exist although no entry describes it.
var plainDir = tar.Header{Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Unix(0, 0)}
