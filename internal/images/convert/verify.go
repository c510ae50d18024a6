// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// file is an entry of a file system. Names with hard links to one another share it.
type file struct {
	kind    byte // as in package tar; TypeDir: a directory
	implied bool // a directory that no entry describes
	mode    int64
	uid     int
	gid     int
	mtime   int64 // in nanoseconds
	size    int64
	link    string
	major   int64
	minor   int64
	xattrs  string
	sum     [sha256.Size]byte
}

// tree is a file system by path. It is independent of the plans by which layers are rewritten, so that it can check
// them.
type tree struct {
	files map[string]*file
	below map[string]map[string]bool // the paths in a folder, by its path
}

func newTree() tree { return tree{files: map[string]*file{}, below: map[string]map[string]bool{}} }

// folderOf is the path of the folder that a path is in; "" is the root.
func folderOf(name string) string {
	dir, _ := path.Split(name)
	return strings.TrimSuffix(dir, "/")
}

// set puts a file at a path.
func (t tree) set(name string, f *file) {
	t.files[name] = f
	if name == "" {
		return
	}
	in := folderOf(name)
	if t.below[in] == nil {
		t.below[in] = map[string]bool{}
	}
	t.below[in][name] = true
}

// remove removes what is below a path, and the path itself if all is set. It takes time by what it removes, and not by
// the size of the tree.
func (t tree) remove(name string, all bool) {
	for below := range t.below[name] {
		t.remove(below, true)
	}
	if all && name != "" {
		delete(t.files, name)
		delete(t.below[folderOf(name)], name)
	}
}

// apply adds a layer, as the OCI image-spec says: first its whiteouts, which are about lower layers, then its entries.
func (t tree) apply(open func() (io.ReadCloser, error)) error {
	for _, whiteouts := range []bool{true, false} {
		archive, err := open()
		if err != nil {
			return err
		}
		own := map[string]bool{} // symbolic links of this layer
		err = entries(archive, func(_ int, h *tar.Header, content io.Reader) error {
			dir, base := path.Split(clean(h.Name))
			switch {
			case strings.HasPrefix(base, whiteoutPrefix) != whiteouts || h.Typeflag == tar.TypeXGlobalHeader:
			case base == opaqueName:
				t.remove(clean(dir), false)
			case whiteouts:
				t.remove(clean(path.Join(dir, base[len(whiteoutPrefix):])), true)
			default:
				return t.add(h, content, own)
			}
			return nil
		})
		if e := archive.Close(); err == nil {
			err = e
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// resolve follows symbolic links of the same layer on the way to a path, as unpacking does.
func (t tree) resolve(name string, own map[string]bool) (string, error) {
	at, rest := "", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		next := path.Join(at, rest[0])
		if rest[0] == ".." {
			next = clean(path.Join(at, ".."))
		}
		rest = rest[1:]
		if f := t.files[next]; f != nil && f.kind == tar.TypeSymlink && own[next] {
			if links++; links > mostLinks {
				return "", fmt.Errorf("%s: too many symbolic links", name)
			}
			if path.IsAbs(f.link) {
				at = ""
			}
			rest = append(strings.Split(strings.Trim(f.link, "/"), "/"), rest...)
			continue
		}
		at = next
	}
	return at, nil
}

func (t tree) add(h *tar.Header, content io.Reader, own map[string]bool) error {
	dir, base := path.Split(clean(h.Name))
	if dropped[clean(h.Name)] {
		return nil
	}
	parent, err := t.resolve(clean(dir), own)
	if err != nil {
		return err
	}
	name := path.Join(parent, base)
	for p := parent; p != "" && p != "."; p = clean(path.Dir(p)) {
		if f := t.files[p]; f == nil || f.kind != tar.TypeDir {
			t.set(p, &file{kind: tar.TypeDir, implied: true, mode: 0o755})
			delete(own, p)
		}
	}
	old := t.files[name]
	var f *file
	if h.Typeflag == tar.TypeLink {
		linkDir, linkBase := path.Split(clean(h.Linkname))
		if linkDir, err = t.resolve(clean(linkDir), own); err != nil {
			return err
		}
		if f = t.files[path.Join(linkDir, linkBase)]; f == nil || f.kind == tar.TypeDir {
			return fmt.Errorf("%s: hard link to %s, which does not exist", h.Name, h.Linkname)
		}
	} else {
		f = &file{kind: h.Typeflag, link: h.Linkname, major: h.Devmajor, minor: h.Devminor}
	}
	if h.Typeflag == tar.TypeDir {
		if old != nil && old.kind != tar.TypeDir {
			t.remove(name, true)
		}
	} else if old != f {
		t.remove(name, true)
	}
	f.mode, f.uid, f.gid, f.mtime = h.Mode&0o7777, h.Uid, h.Gid, h.ModTime.UnixNano()
	f.setXattrs(h)
	delete(own, name)
	switch h.Typeflag {
	case tar.TypeSymlink:
		own[name] = true
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		f.kind, f.link, f.size = tar.TypeReg, "", h.Size
		sum := sha256.New()
		if _, err := io.Copy(sum, content); err != nil {
			return err
		}
		copy(f.sum[:], sum.Sum(nil))
	}
	t.set(name, f)
	return nil
}

// setXattrs adds extended attributes of a header.
func (f *file) setXattrs(h *tar.Header) {
	all := map[string]string{}
	for line := range strings.Lines(f.xattrs) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		all[k] = v
	}
	for k, v := range h.PAXRecords {
		if name, ok := strings.CutPrefix(k, xattrPrefix); ok {
			all[fmt.Sprintf("%q", name)] = fmt.Sprintf("%q", v)
		}
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s=%s\n", k, all[k])
	}
	f.xattrs = b.String()
}

// kinds are words for types of files.
var kinds = map[byte]string{
	tar.TypeReg: "file", tar.TypeDir: "directory", tar.TypeSymlink: "symbolic link", tar.TypeChar: "character device",
	tar.TypeBlock: "block device", tar.TypeFifo: "pipe",
}

// differs describes how two files differ; empty if they do not.
func (f *file) differs(g *file) string {
	if f.kind != g.kind {
		return fmt.Sprintf("%s instead of %s", kinds[g.kind], kinds[f.kind])
	}
	var all []string
	check := func(what string, a, b any) {
		if a != b {
			all = append(all, fmt.Sprintf("%s %v instead of %v", what, b, a))
		}
	}
	check("mode", fmt.Sprintf("%04o", f.mode), fmt.Sprintf("%04o", g.mode))
	check("uid", f.uid, g.uid)
	check("gid", f.gid, g.gid)
	if !f.implied && !g.implied { // otherwise the time of unpacking
		check("mtime", f.mtime, g.mtime)
	}
	check("size", f.size, g.size)
	check("target", f.link, g.link)
	check("device", [2]int64{f.major, f.minor}, [2]int64{g.major, g.minor})
	check("extended attributes", f.xattrs, g.xattrs)
	if f.size == g.size && f.sum != g.sum {
		all = append(all, "other content")
	}
	return strings.Join(all, ", ")
}

// compare returns the differences of two trees, sorted by path.
func compare(before, after tree) []string {
	var all []string
	names := maps.Clone(before.files)
	maps.Copy(names, after.files)
	before2after := map[*file]*file{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		b, a := before.files[name], after.files[name]
		switch {
		case b == nil:
			all = append(all, fmt.Sprintf("/%s is only in the result (%s)", name, kinds[a.kind]))
			continue
		case a == nil:
			all = append(all, fmt.Sprintf("/%s is missing in the result (%s)", name, kinds[b.kind]))
			continue
		}
		if d := b.differs(a); d != "" {
			all = append(all, fmt.Sprintf("/%s: %s", name, d))
		}
		if known := before2after[b]; known != nil && known != a {
			all = append(all, fmt.Sprintf("/%s is no longer a hard link", name))
		}
		before2after[b] = a
	}
	back := map[*file]*file{}
	for _, name := range slices.Sorted(maps.Keys(after.files)) {
		b, a := before.files[name], after.files[name]
		if b == nil {
			continue
		}
		if known := back[a]; known != nil && known != b {
			all = append(all, fmt.Sprintf("/%s has become a hard link", name))
		}
		back[a] = b
	}
	return all
}

// mostDifferences is the most that an error lists.
const mostDifferences = 20

// verify compares the file systems of the images before and after, if that was asked for.
func (j *job) verify(ctx context.Context, before []*part, after []ocispec.Manifest) error {
	if !j.o.Verify {
		return nil
	}
	total := sizeOf(before)
	for _, m := range after {
		for _, l := range m.Layers {
			total += l.Size
		}
	}
	j.count.begin(StageVerify, 2*total)
	for i, p := range before {
		was, err := j.tree(ctx, p.manifest.Layers, j.from.open)
		if err != nil {
			return fmt.Errorf("verify the source: %w", err)
		}
		is, err := j.tree(ctx, after[i].Layers, j.to.open)
		if err != nil {
			return fmt.Errorf("verify the result: %w", err)
		}
		differences := compare(was, is)
		if len(differences) == 0 {
			continue
		}
		more := ""
		if n := len(differences); n > mostDifferences {
			differences, more = differences[:mostDifferences], fmt.Sprintf("\n  and %d more", n-mostDifferences)
		}
		return fmt.Errorf("the result for %s is not the same file system, and was not given its name:\n  %s%s",
			platforms.Format(p.platform), strings.Join(differences, "\n  "), more)
	}
	j.res.Verified = true
	return nil
}

// tree returns the file system of layers.
func (j *job) tree(ctx context.Context, layers []ocispec.Descriptor,
	open func(context.Context, ocispec.Descriptor) (io.ReadCloser, error)) (tree, error) {
	t := newTree()
	for _, l := range layers {
		if foreign(l) {
			continue
		}
		err := t.apply(func() (io.ReadCloser, error) {
			blob, err := open(ctx, l)
			if err != nil {
				return nil, err
			}
			return archiveIn(j.count.reader(blob))
		})
		if err != nil {
			return t, fmt.Errorf("layer %s: %w", l.Digest, err)
		}
	}
	return t, nil
}
