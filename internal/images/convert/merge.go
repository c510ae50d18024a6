// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/stargz-snapshotter/estargz"
)

// Names of whiteouts (OCI image-spec, "Image Layer Filesystem Changeset").
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
)

// mostLinks bounds the symbolic links on the way to an entry, as Linux does.
const mostLinks = 40

// place is the position of an entry in the source: a layer, and the number of the entry in it.
type place struct{ layer, entry int }

// inode is anything but a directory. It has several names if there are hard links to it.
type inode struct {
	header tar.Header // with the final metadata
	at     place      // of the content
	names  []*node
}

// node is a name in the file system that a run of layers makes.
type node struct {
	name     string // "" for the root
	parent   *node
	children map[string]*node
	// inode is what the name stands for; nil: a directory, or nothing.
	inode *inode
	// dir is the last header of a directory. It is nil for a directory that the layers imply.
	dir   *tar.Header
	at    place // of dir
	isDir bool
	// hides is set if the content of lower layers under this name is removed.
	hides bool
	// opaque is set if the content of lower layers in this directory is removed.
	opaque bool
	// implied is set if the directory contained an entry, and not only a whiteout.
	implied bool
	layer   int // that made it
}

// dropped are files about the arrangement of an eStargz layer, which a new arrangement makes wrong.
var dropped = map[string]bool{
	estargz.TOCTarName: true, estargz.PrefetchLandmark: true, estargz.NoPrefetchLandmark: true,
}

// clean returns the path of an entry from the root, without a slash at either end.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

func newRoot() *node { return &node{isDir: true, children: map[string]*node{}} }

// path returns the path from the root.
func (n *node) path() string {
	if n.parent == nil {
		return ""
	}
	return path.Join(n.parent.path(), n.name)
}

// child returns a child, which is made if it does not exist.
func (n *node) child(name string) *node {
	c := n.children[name]
	if c == nil {
		c = &node{name: name, parent: n, layer: -1}
		n.children[name] = c
	}
	return c
}

// exists reports whether there is a file or directory under the name; otherwise it only remembers a whiteout.
func (n *node) exists() bool { return n.isDir || n.inode != nil }

// clear removes the content under a name, and records that it hides the content of lower layers.
func (n *node) clear() {
	if n.inode != nil {
		n.inode.names = slices.DeleteFunc(n.inode.names, func(x *node) bool { return x == n })
		n.inode = nil
	}
	for _, c := range n.children {
		c.clear()
	}
	*n = node{name: n.name, parent: n.parent, hides: true, layer: -1}
}

// makeDir makes n a directory. Its former content is gone.
func (n *node) makeDir(layer int) {
	if n.isDir {
		return
	}
	if n.inode != nil {
		n.clear()
	}
	n.isDir, n.children, n.layer = true, map[string]*node{}, layer
}

// dirOf returns the directory for an entry and makes it if need be. Symbolic links of the same layer are followed, as
// containerd does; one of an earlier layer is replaced, since containerd does not see it while it unpacks.
func (n *node) dirOf(name string, layer int) (*node, error) {
	at, links := n, 0
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at.parent != nil {
				at = at.parent
			}
			continue
		}
		next := at.child(part)
		if i := next.inode; i != nil && i.header.Typeflag == tar.TypeSymlink && next.layer == layer {
			if links++; links > mostLinks {
				return nil, fmt.Errorf("%s: too many symbolic links", name)
			}
			if path.IsAbs(i.header.Linkname) {
				at = n
			}
			rest = append(strings.Split(i.header.Linkname, "/"), rest...)
			continue
		}
		next.makeDir(layer)
		next.implied = true
		at = next
	}
	return at, nil
}

// parentOfWhiteout returns the directory of a whiteout, or nil if it is known that there is none: then nothing is
// hidden.
func (n *node) parentOfWhiteout(name string) *node {
	at := n
	for part := range strings.SplitSeq(clean(name), "/") {
		if part == "" {
			continue
		}
		next := at.child(part)
		if next.inode != nil || next.hides && !next.isDir {
			return nil
		}
		if !next.isDir { // one that lower layers may have
			next.isDir, next.children = true, map[string]*node{}
		}
		at = next
	}
	return at
}

// apply adds a layer, given the headers of its entries.
func (n *node) apply(layer int, headers []*tar.Header) error {
	for _, h := range headers {
		dir, base := path.Split(clean(h.Name))
		if !strings.HasPrefix(base, whiteoutPrefix) {
			continue
		}
		parent := n.parentOfWhiteout(dir)
		switch {
		case parent == nil:
		case base == opaqueName:
			parent.opaque = true
			for _, c := range parent.children {
				c.clear()
			}
		default:
			parent.child(base[len(whiteoutPrefix):]).clear()
		}
	}
	for i, h := range headers {
		if err := n.add(place{layer, i}, h); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return nil
}

// add adds an entry that is no whiteout.
func (n *node) add(at place, h *tar.Header) error {
	name := clean(h.Name)
	dir, base := path.Split(name)
	if h.Typeflag == tar.TypeXGlobalHeader || strings.HasPrefix(base, whiteoutPrefix) || dropped[name] {
		return nil
	}
	if name == "" {
		if h.Typeflag == tar.TypeDir {
			n.dir, n.at = h, at
		}
		return nil
	}
	parent, err := n.dirOf(dir, at.layer)
	if err != nil {
		return err
	}
	to := parent.child(base)
	if h.Typeflag == tar.TypeDir {
		to.makeDir(at.layer)
		to.dir, to.at, to.layer = h, at, at.layer
		return nil
	}
	i := &inode{header: *h, at: at}
	if h.Typeflag == tar.TypeLink {
		if i, err = n.linked(h, at.layer); err != nil {
			return err
		}
		if to.inode == i {
			return nil
		}
	}
	if to.exists() {
		to.clear()
	}
	to.inode, to.hides, to.layer = i, true, at.layer
	i.names = append(i.names, to)
	return nil
}

// outside returns the error for a hard link whose target the run lacks.
func outside(target string) error {
	return fmt.Errorf("hard link to %s, which its layer lacks: containerd cannot unpack such a layer, "+
		"and only --layers keep can copy it", target)
}

// linked returns what a hard link refers to, with the metadata of the link's header, which containerd applies to it.
func (n *node) linked(h *tar.Header, layer int) (*inode, error) {
	dir, base := path.Split(clean(h.Linkname))
	at := n
	for part := range strings.SplitSeq(path.Clean("/"+dir), "/") {
		if part == "" {
			continue
		}
		next := at.children[part]
		if next != nil && next.inode != nil && next.inode.header.Typeflag == tar.TypeSymlink && next.layer == layer {
			var err error
			if next, err = n.dirOf(next.path(), layer); err != nil {
				return nil, err
			}
		}
		if next == nil {
			return nil, outside(h.Linkname)
		}
		at = next
	}
	target := at.children[base]
	if target == nil || target.inode == nil {
		return nil, outside(h.Linkname)
	}
	to := &target.inode.header
	to.Mode, to.Uid, to.Gid, to.Uname, to.Gname = h.Mode, h.Uid, h.Gid, h.Uname, h.Gname
	to.ModTime, to.AccessTime = h.ModTime, h.AccessTime
	for k, v := range h.PAXRecords {
		if strings.HasPrefix(k, xattrPrefix) {
			if to.PAXRecords == nil {
				to.PAXRecords = map[string]string{}
			}
			to.PAXRecords[k] = v
		}
	}
	return target.inode, nil
}

// xattrPrefix begins the names of PAX records with extended attributes.
const xattrPrefix = "SCHILY.xattr."
