// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/images/pullstat/live"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/need"
)

// Real images take minutes: by default a few of them are converted, each in one way.
var (
	everyImage = flag.Bool("every-image", false, "convert every real image")
	everyWay   = flag.Bool("every-way", false, "convert each real image in every way")
)

// fewImages is how many real images are converted by default.
const fewImages = 2

// ways to convert an image.
var ways = []struct{ layers, compression string }{
	{Keep, "zstd"}, {"split=512KiB", "zstd"}, {Squash, "gzip"}, {Keep, "estargz"}, {"split=512KiB", "none"},
	{Keep, "none"}, {Squash, "zstd:1"}, {Keep, "zstdchunked"}, {"split=128KiB", "estargz"}, {Keep, "gzip"},
	{Squash, "none"}, {"split=512KiB", "zstdchunked"},
}

func options(t testing.TB, source, destination, layers, compression string) Options {
	t.Helper()
	o := Options{Source: source, Destination: destination}
	var err error
	if o.Layers, err = ParseLayers(layers); err != nil {
		t.Fatal(err)
	}
	if o.Compression, err = ParseCompression(compression); err != nil {
		t.Fatal(err)
	}
	return o
}

// snapshot is what can be seen of a file system, a line for each path.
func snapshot(root string) (map[string]string, error) {
	all := map[string]string{}
	inodes := map[[2]uint64]string{} // the first name, by device and inode
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(p, root)
		if name == "" || dropped[name[1:]] {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("mode %o owner %d:%d device %x", st.Mode, st.Uid, st.Gid, st.Rdev)
		if !d.IsDir() || st.Mtim.Nano() < time.Now().Add(-24*time.Hour).UnixNano() {
			line += fmt.Sprintf(" mtime %d", st.Mtim.Nano()) // a folder that no entry describes has the time of unpacking
		}
		switch {
		case info.Mode().IsRegular():
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			sum := sha256.New()
			if _, err := io.Copy(sum, f); err != nil {
				return err
			}
			line += fmt.Sprintf(" size %d sum %x", st.Size, sum.Sum(nil))
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " to " + to
		}
		if !d.IsDir() {
			inode := [2]uint64{st.Dev, st.Ino}
			if _, ok := inodes[inode]; !ok {
				inodes[inode] = name
			}
			line += " same as " + inodes[inode] // overlayfs also counts links of names that are hidden
		}
		attributes, err := xattrsOf(p)
		if err != nil {
			return err
		}
		all[name] = line + attributes
		return nil
	})
	return all, err
}

func xattrsOf(p string) (string, error) {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(p, names)
	if err != nil {
		return "", &os.PathError{Op: "listxattr", Path: p, Err: err}
	}
	var b strings.Builder
	sorted := strings.Split(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00")
	slices.Sort(sorted)
	for _, name := range sorted {
		value := make([]byte, 64<<10)
		if name == "" {
			continue
		}
		n, err := unix.Lgetxattr(p, name, value)
		if err != nil {
			return "", &os.PathError{Op: "getxattr " + name, Path: p, Err: err}
		}
		fmt.Fprintf(&b, " %s=%q", name, value[:n])
	}
	return b.String(), nil
}

// mounted returns what the machine's containerd mounts for an image in a tarball.
func mounted(t *testing.T, file string) map[string]string {
	t.Helper()
	return mountedBy(t, file, live.Options{Program: "containerd"})
}

// mountedBy is mounted with another containerd, or another snapshotter.
func mountedBy(t *testing.T, file string, o live.Options) map[string]string {
	t.Helper()
	need.Root(t)
	dir, err := os.MkdirTemp("", "cv") // short, because of the socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var all map[string]string
	o.Image, o.Via, o.Dir = file, live.ViaContainerd, dir
	if err := live.Mounted(t.Context(), o, func(root string) (err error) {
		all, err = snapshot(root)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(all) < 2 {
		t.Fatalf("%s: only %d files are mounted", file, len(all))
	}
	return all
}

func sameMounted(t *testing.T, before, after map[string]string) {
	t.Helper()
	for name, line := range before {
		if after[name] != line {
			t.Errorf("%s:\n%s\nbecame\n%s", name, line, after[name])
		}
	}
	for name, line := range after {
		if before[name] == "" {
			t.Errorf("%s is new: %s", name, line)
		}
	}
}

// imageOf returns an image with layers, which are archives.
func imageOf(t testing.TB, mediaType types.MediaType, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	if strings.HasPrefix(string(mediaType), "application/vnd.docker.") {
		img = empty.Image
	}
	for i, l := range layers {
		var err error
		if img, err = mutate.Append(img, mutate.Addendum{
			Layer: staticLayer(t, l, mediaType), MediaType: mediaType, History: v1.History{CreatedBy: fmt.Sprint("step ", i)},
		}, mutate.Addendum{History: v1.History{CreatedBy: fmt.Sprint("ENV ", i), EmptyLayer: true}}); err != nil {
			t.Fatal(err)
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{Entrypoint: []string{"/x"}, Env: []string{"A=b"}, StopSignal: "SIGQUIT"}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		t.Fatal(err)
	}
	return img
}

func saved(t testing.TB, img v1.Image) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "source.tar")
	if err := image.WriteFile(file, "local/source:v1", img); err != nil {
		t.Fatal(err)
	}
	return file
}

// oddLayers have everything that a layer can have.
func oddLayers(t testing.TB) [][]byte {
	t.Helper()
	with := func(e entry, change func(h *tar.Header)) entry {
		change(&e.Header)
		return e
	}
	// cap_net_bind_service
	capability := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	long := strings.Repeat("a-long-name/", 15) + strings.Repeat("x", 200)
	special := func(name string, kind byte) entry {
		return entry{Header: tar.Header{Typeflag: kind, Name: name, Mode: 0o620, Devmajor: 1, Devminor: 3,
			ModTime: time.Unix(7, 0)}}
	}
	var lower []entry
	lower = append(lower,
		dir(".", 0o755), dir("bin", 0o755), dir("var", 0o1777), dir("var/opaque", 0o755), dir("var/gone", 0o755),
		with(reg("bin/su", "#!"), func(h *tar.Header) { h.Mode = 0o4755 }),
		with(reg("bin/capable", "x"), func(h *tar.Header) {
			h.PAXRecords = map[string]string{xattrPrefix + "security.capability": capability,
				xattrPrefix + "user.note": "a\x00b=\n"}
		}),
		with(reg("bin/huge-ids", "y"), func(h *tar.Header) { h.Uid, h.Gid = 3<<21, 1<<30 }),
		with(reg("bin/sub-second", "z"), func(h *tar.Header) { h.ModTime = time.Unix(1e9, 987654321) }),
		with(dir("var/attributed", 0o2750), func(h *tar.Header) {
			h.PAXRecords = map[string]string{xattrPrefix + "user.dir": "yes"}
		}),
		reg("var/opaque/hidden", "1"), reg("var/gone/a", "1"), reg("var/file-to-dir", "1"), dir("var/dir-to-file", 0o755),
		reg("var/dir-to-file/x", "1"), reg("var/sparse", strings.Repeat("\x00", 1<<19)+"end"),
		special("var/null", tar.TypeChar), special("var/disk", tar.TypeBlock), special("var/pipe", tar.TypeFifo),
		symlink("var/dangling", "/no/where"), reg("var/linked", "shared"), reg("umläut \n\t file", "u"), reg("empty", ""),
	)
	for i := range strings.Count(long, "/") {
		lower = append(lower, dir(strings.Join(strings.Split(long, "/")[:i+1], "/"), 0o751))
	}
	lower = append(lower, reg(long, "long"), link("var/hard-1", "var/linked"), link("var/hard-2", "var/linked"),
		link("hard-long", long), link("var/hard-null", "var/null"))
	for i := range 40 {
		lower = append(lower, reg(fmt.Sprintf("var/many-%02d", i), strings.Repeat(fmt.Sprint(i), 20000)))
	}
	upper := []entry{
		dir("var", 0o1777), dir("var/opaque", 0o711), opaque("var/opaque"), reg("var/opaque/shown", "2"), gone("var/gone"),
		dir("var/file-to-dir", 0o700), reg("var/file-to-dir/y", "2"), reg("var/dir-to-file", "2"), reg("var/linked",
			"replaced"),
		gone("var/many-00"), dir("bin", 0o755), gone("bin/huge-ids"),
	}
	top := []entry{
		dir("var", 0o1777), dir("var/gone", 0o700), reg("var/gone/b", "back"), gone("var/hard-2"), dir("bin", 0o700),
		reg("bin/huge-ids", "again"),
	}
	return [][]byte{archiveOf(t, lower), archiveOf(t, upper), archiveOf(t, nil), archiveOf(t, top)}
}

func TestContainerdMountsTheSameForAnOddImage(t *testing.T) {
	source := saved(t, imageOf(t, types.OCILayer, oddLayers(t)...))
	before := mounted(t, source)
	if !strings.Contains(before["/bin/capable"], "security.capability") || before["/var/opaque/hidden"] != "" {
		t.Fatalf("the source is not what it should be: %v", before["/bin/capable"])
	}
	for _, way := range ways {
		t.Run(way.layers+" "+way.compression, func(t *testing.T) {
			destination := filepath.Join(t.TempDir(), "result.tar")
			o := options(t, source, destination, way.layers, way.compression)
			o.Verify = true
			if _, err := Run(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			sameMounted(t, before, mounted(t, destination))
		})
	}
}

// TestErofsShowsTheSame compares what the snapshotters overlayfs and erofs mount.
func TestErofsShowsTheSame(t *testing.T) {
	program := need.ErofsContainerd(t)
	need.Root(t)
	path, _, err := debimage.MkfsErofs(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range map[string]string{
		"odd": saved(t, imageOf(t, types.OCILayer, oddLayers(t)...)), "redis-server": layeredImage(t, "redis-server"),
	} {
		t.Run(name, func(t *testing.T) {
			before := mountedBy(t, file, live.Options{Program: program})
			after := mountedBy(t, file, live.Options{Program: program, Snapshotter: erofs.Snapshotter, Path: path})
			sameMounted(t, withoutModeOfLinks(before), withoutModeOfLinks(after))
		})
	}
}

// withoutModeOfLinks leaves out mode and time of the odd image's hard links. mkfs.erofs keeps those of the first entry;
// containerd's own differ sets those of the last one, which are others in that image only.
func withoutModeOfLinks(files map[string]string) map[string]string {
	const same = " same as "
	inode := func(line string) string { _, after, _ := strings.Cut(line, same); return after }
	linked := map[string]bool{}
	for name, line := range files {
		if strings.Contains(name, "hard-") {
			linked[inode(line)] = true
		}
	}
	changed := maps.Clone(files)
	for name, line := range files {
		if strings.Contains(line, same) && linked[inode(line)] {
			changed[name] = modeAndTime.ReplaceAllString(line, "")
		}
	}
	return changed
}

var modeAndTime = regexp.MustCompile(`^mode \d+ | mtime \d+`)

// realPackages are small and large packages of Debian; each is an image of its own.
var realPackages = []string{
	"busybox-static", "tzdata", "redis-server", "python3-minimal", "git", "mawk", "ncurses-base", "sqlite3", "file",
	"nginx-light",
}

// layeredImage returns the files of a package and its dependencies as an image with several layers: two halves, and one
// that removes and changes some of them.
func layeredImage(t *testing.T, name string) string {
	t.Helper()
	built, err := debimage.Build(t.Context(), debimage.Recipe{Name: "convert-" + name, Packages: []string{name}})
	if err != nil {
		t.Fatal(err)
	}
	content, err := built.Image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	whole, err := content[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	var dirs, even, odd, files []entry
	if err := entries(whole, func(i int, h *tar.Header, content io.Reader) error {
		data, err := io.ReadAll(content)
		e := entry{*h, string(data)}
		switch {
		case h.Typeflag == tar.TypeDir:
			dirs = append(dirs, e)
		case i%2 == 0:
			even = append(even, e)
		default:
			odd = append(odd, e)
		}
		if h.Typeflag == tar.TypeReg {
			files = append(files, e)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var changes []entry
	for i, f := range files {
		switch i % 17 {
		case 3:
			changes = append(changes, gone(clean(f.Name)))
		case 7:
			f.Mode ^= 0o111
			changes = append(changes, f)
		}
	}
	layers := [][]byte{archiveOf(t, append(slices.Clone(dirs), even...)), archiveOf(t, append(slices.Clone(dirs), odd...)),
		archiveOf(t, append(slices.Clone(dirs), changes...))}
	return saved(t, imageOf(t, types.OCILayer, layers...))
}

func TestContainerdMountsTheSameForRealImages(t *testing.T) {
	names := realPackages
	if !*everyImage {
		names = names[:fewImages]
	}
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			source := layeredImage(t, name)
			before := mounted(t, source)
			some := []int{i % len(ways)}
			if *everyWay {
				some = nil
				for w := range ways {
					some = append(some, w)
				}
			}
			for _, w := range some {
				destination := filepath.Join(t.TempDir(), "result.tar")
				o := options(t, source, destination, ways[w].layers, ways[w].compression)
				o.Verify = true
				res, err := Run(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%v: %d files, %d layers", ways[w], len(before), len(res.Images[0].After))
				sameMounted(t, before, mounted(t, destination))
			}
		})
	}
}
