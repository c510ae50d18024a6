// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// watchPlan lists what to watch in order to see every change of the sources. Its paths are absolute, and their folders
// contain no symlinks.
type watchPlan struct {
	// dirs are the folders to watch. A file is watched through its folder, because a replacement is another file.
	dirs map[string]bool
	// names are the paths whose changes matter: files, symlinks on the way to them, folders, and missing paths.
	names map[string]bool
	// folders are the sources that are folders: every manifest in them matters.
	folders map[string]bool
}

// maxLinks is how many symlinks a path may lead through, the same as in the kernel.
const maxLinks = 40

// planWatch finds out where the sources are.
func planWatch(sources []string) *watchPlan {
	p := &watchPlan{dirs: map[string]bool{}, names: map[string]bool{}, folders: map[string]bool{}}
	for _, s := range sources {
		absolute, err := filepath.Abs(s)
		if s == stdinSource || err != nil {
			continue
		}
		if info, err := os.Stat(s); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
			continue // a pipe is read once
		}
		if dir, ok := p.follow(absolute); ok {
			p.folder(dir)
		}
	}
	return p
}

// concerns reports whether an event for a path may change the content of the sources.
func (p *watchPlan) concerns(name string) bool {
	return p.names[name] || p.folders[filepath.Dir(name)] && isManifestName(filepath.Base(name))
}

func (p *watchPlan) watch(dir, name string) {
	p.dirs[dir] = true
	p.names[dir] = true // the folder itself may be renamed or removed
	p.names[name] = true
}

func (p *watchPlan) folder(dir string) {
	p.watch(dir, dir)
	p.folders[dir] = true
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // Load reports it
	}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 && isManifestName(e.Name()) {
			p.follow(filepath.Join(dir, e.Name()))
		}
	}
}

// follow plans for every symlink along an absolute path and for its end. If the end is a folder, it returns the
// folder's resolved path and true.
func (p *watchPlan) follow(path string) (folder string, ok bool) {
	at, rest := "/", split(path)
	for links := 0; len(rest) > 0; {
		next := filepath.Join(at, rest[0]) // ".." goes up
		rest = rest[1:]
		info, err := os.Lstat(next)
		switch {
		case err != nil:
			p.watch(at, next)
			return "", false
		case info.Mode()&os.ModeSymlink != 0:
			p.watch(at, next)
			target, err := os.Readlink(next)
			if links++; err != nil || links > maxLinks {
				return "", false
			}
			if filepath.IsAbs(target) {
				at = "/"
			}
			rest = slices.Concat(split(target), rest)
		case len(rest) == 0 && !info.IsDir():
			p.watch(at, next)
			return "", false
		default:
			at = next
		}
	}
	return at, true
}

// split returns the elements of a path.
func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}
