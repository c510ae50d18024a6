// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"
)

// entry is an entry of a layer in tests.
type entry struct {
	tar.Header
	data string
}

// reg, dir and the like are entries with metadata that follow from their names, so that a mix-up shows.
func reg(name, data string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600 + int64(len(data))%8, Size: int64(len(data)),
		ModTime: time.Unix(int64(len(name)), 123456789)}, data}
}

func dir(name string, mode int64) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: time.Unix(mode, 5)}}
}

func link(name, to string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o640, ModTime: time.Unix(9,
		0)}}
}

func symlink(name, to string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777,
		ModTime: time.Unix(8, 0)}}
}

func gone(name string) entry {
	parent, base := path.Split(name)
	return reg(parent+whiteoutPrefix+base, "")
}

func opaque(name string) entry { return reg(name+"/"+opaqueName, "") }

func archiveOf(t testing.TB, entries []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.data)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func opener(archive []byte) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }
}

// rewritten returns archives with the same file system: layers rewritten as runs of the given lengths.
func rewritten(t testing.TB, layers [][]byte, lengths []int, size int64) ([][]byte, error) {
	t.Helper()
	var out [][]byte
	at, work := 0, t.TempDir()
	for _, n := range lengths {
		root := newRoot()
		var open []func() (io.ReadCloser, error)
		for i, l := range layers[at : at+n] {
			headers, err := headersOf(bytes.NewReader(l))
			if err != nil {
				return nil, err
			}
			if err := root.apply(i, headers); err != nil {
				return nil, err
			}
			open = append(open, opener(l))
		}
		plan := cut(root, at == 0, size)
		if at > 0 && n > 1 && len(plan.bare()) > 0 { // as rewriteNow does
			for i := range n {
				made, err := rewritten(t, [][]byte{nil, layers[at+i]}, []int{1, 1}, size)
				if err != nil {
					return nil, err
				}
				out = append(out, made[1:]...)
			}
			at += n
			continue
		}
		made := make([][]byte, plan.count)
		w := &writer{plan: plan, dir: work, done: func(piece int, file string) (err error) {
			if made[piece] != nil {
				t.Errorf("piece %d is done twice", piece)
			}
			made[piece], err = os.ReadFile(file)
			return errors.Join(err, os.Remove(file))
		}}
		if err := w.write(open); err != nil {
			return nil, err
		}
		for i, m := range made {
			if m == nil {
				t.Errorf("piece %d of %d is missing", i, len(made))
			}
		}
		out = append(out, made...)
		at += n
	}
	return out, nil
}

func treeOf(layers [][]byte) (tree, error) {
	t := newTree()
	for _, l := range layers {
		if err := t.apply(opener(l)); err != nil {
			return t, err
		}
	}
	return t, nil
}

// checkSame rewrites layers in several ways and compares the file systems.
func checkSame(t *testing.T, layers [][]byte) {
	t.Helper()
	want, err := treeOf(layers)
	if err != nil {
		t.Fatal(err)
	}
	ones := slices.Repeat([]int{1}, len(layers))
	ways := [][]int{ones, {len(layers)}}
	if len(layers) > 2 {
		ways = append(ways, append([]int{len(layers) - 1}, 1), append([]int{1}, len(layers)-1))
	}
	for _, lengths := range ways {
		for _, size := range []int64{0, 3 * block, 10 * block} {
			made, err := rewritten(t, layers, lengths, size)
			if err != nil {
				t.Fatalf("runs %v, size %d: %v", lengths, size, err)
			}
			got, err := treeOf(made)
			if err != nil {
				t.Fatalf("runs %v, size %d: %v\n%s", lengths, size, err, listing(t, made))
			}
			if d := compare(want, got); len(d) > 0 {
				t.Fatalf("runs %v, size %d:\n%s\nof\n%s\nmade\n%s", lengths, size, strings.Join(d, "\n"), listing(t, layers),
					listing(t, made))
			}
			checkPieces(t, made)
		}
	}
}

// checkPieces checks what unpacking in parallel needs: hard links stay in their layer, and come after their targets;
// no name occurs twice.
func checkPieces(t *testing.T, layers [][]byte) {
	t.Helper()
	for _, l := range layers {
		seen := map[string]bool{}
		headers, err := headersOf(bytes.NewReader(l))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range headers {
			if h.Typeflag == tar.TypeLink && !seen[clean(h.Linkname)] {
				t.Errorf("hard link %s comes before %s, or in another layer", h.Name, h.Linkname)
			}
			if seen[clean(h.Name)] {
				t.Errorf("%s is in a layer twice", h.Name)
			}
			seen[clean(h.Name)] = true
		}
	}
}

func listing(t testing.TB, layers [][]byte) string {
	t.Helper()
	var b strings.Builder
	for i, l := range layers {
		headers, err := headersOf(bytes.NewReader(l))
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range headers {
			fmt.Fprintf(&b, "%d %c %04o %s %s %d\n", i, h.Typeflag, h.Mode, h.Name, h.Linkname, h.Size)
		}
	}
	return b.String()
}

func TestRewrittenLayersHaveTheSameFileSystem(t *testing.T) {
	big := strings.Repeat("x", 20*block)
	for name, layers := range map[string][][]entry{
		"files in folders": {{dir("a", 0o700), dir("a/b", 0o711), reg("a/b/c", "1"), reg("a/b/d",
			big), reg("a/e", "3")}},
		"folders that no entry describes": {{reg("a/b/c", "1")}, {reg("a/b/d", "2")}},
		"metadata of a folder changes":    {{dir("a", 0o700), reg("a/x", "1")}, {dir("a", 0o755), reg("a/y", "2")}},
		"the root has metadata":           {{dir(".", 0o711), reg("x", "1")}},
		"names with dots and slashes":     {{dir("./a", 0o700), reg("./a//b", "1"), reg("/c", "2")}},
		"a file is removed":               {{reg("a", "1"), reg("b", "2")}, {gone("a")}},
		"a folder is removed":             {{dir("a", 0o700), reg("a/x", "1")}, {gone("a")}},
		"a removed file comes back":       {{reg("a", "1")}, {gone("a")}, {reg("a", "22")}},
		"a removed folder comes back": {{dir("a", 0o700), reg("a/x", "1")}, {gone("a")}, {dir("a", 0o755),
			reg("a/y", "2")}},
		"removed and made again at once": {{dir("a", 0o700), reg("a/x", "1")}, {gone("a"), dir("a", 0o755),
			reg("a/y", "2")}},
		"the whiteout comes after": {{dir("a", 0o700), reg("a/x", "1")}, {dir("a", 0o755), reg("a/x",
			"22"), gone("a/x")}},
		"an opaque folder": {{dir("a", 0o700), reg("a/x", "1")}, {dir("a", 0o755), opaque("a"),
			reg("a/y", "2")}},
		"the opaque marker comes after": {{dir("a", 0o700), reg("a/x", "1")}, {dir("a", 0o755), reg("a/y", "2"),
			opaque("a")}},
		"opaque, then more":                  {{reg("a/x", "1")}, {dir("a", 0o755), opaque("a")}, {reg("a/z", "3")}},
		"opaque without a folder of its own": {{dir("a", 0o700), reg("a/x", "1")}, {opaque("a"), reg("a/z", "3")}},
		"a file becomes a folder":            {{reg("a", "1")}, {dir("a", 0o700), reg("a/x", "2")}},
		"a folder becomes a file":            {{dir("a", 0o700), reg("a/x", "1")}, {reg("a", "2")}},
		"folder, file, folder":               {{reg("a/x", "1")}, {reg("a", "2")}, {dir("a", 0o700), reg("a/y", "3")}},
		"a link becomes a folder": {{dir("u", 0o700), symlink("a", "u")}, {dir("a", 0o700), reg("a/x",
			"3")}},
		"through a link of the same layer": {{dir("u", 0o700), symlink("l", "u"), reg("l/x", "1"), symlink("m",
			"/l"), reg("m/y", "2")}},
		"through a link of a lower layer": {{dir("u", 0o700), symlink("l", "u")}, {reg("l/x", "1")}},
		"hard links":                      {{reg("a", "11"), link("b", "a"), dir("d", 0o700), link("d/c", "b")}},
		"hard links far from each other": {{reg("a", big), reg("b", big), reg("c", big), link("z", "a"),
			link("y", "b")}},
		"the first name of a hard link is replaced": {{reg("a", "old"), link("b", "a"), link("c", "a")}, {reg("a", "new")}},
		"the first name of a hard link is removed":  {{reg("a", "old"), link("b", "a")}, {gone("a")}},
		"all names of a hard link go":               {{dir("d", 0o700), reg("d/a", "old"), link("d/b", "d/a")}, {gone("d")}},
		"a hard link to a link":                     {{symlink("a", "nowhere"), link("b", "a")}},
		"an entry twice in a layer":                 {{reg("a", "1"), reg("a", "22")}},
		"folder and file in a layer":                {{dir("a", 0o700), reg("a/x", "1"), reg("a", "22")}},
		"nothing":                                   {{}},
		"nothing but whiteouts":                     {{reg("a", "1"), reg("b", "1")}, {gone("a")}, {gone("b"), gone("c")}},
		"whiteouts of what is not there":            {{reg("a", "1")}, {gone("x/y"), gone("a/b"), opaque("q")}},
	} {
		t.Run(name, func(t *testing.T) {
			var archives [][]byte
			for _, l := range layers {
				archives = append(archives, archiveOf(t, l))
			}
			checkSame(t, archives)
		})
	}
}

// names of random layers: few, so that they meet.
var randomNames = []string{"a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b", "a/b/a", "b/b", "c"}

// randomLayers returns layers that follow from a seed.
func randomLayers(seed uint64) [][]entry {
	r := rand.New(rand.NewPCG(seed, 1))
	var layers [][]entry
	for range 1 + r.IntN(4) {
		var l []entry
		var files []string // whose names still stand for what they were
		for range r.IntN(9) {
			name := randomNames[r.IntN(len(randomNames))]
			kind := r.IntN(8)
			if kind > 3 && kind < 7 { // what may replace something
				files = slices.DeleteFunc(files, func(f string) bool { return f == name || strings.HasPrefix(name, f+"/") })
			}
			files = slices.DeleteFunc(files, func(f string) bool {
				return strings.HasPrefix(f, name+"/") || strings.HasPrefix(name, f+"/")
			})
			switch kind {
			case 0:
				l = append(l, gone(name))
			case 1:
				l = append(l, opaque(name))
			case 2, 3:
				files = slices.DeleteFunc(files, func(f string) bool { return f == name })
				l = append(l, dir(name, 0o700+int64(r.IntN(64))))
			case 4, 5:
				l = append(l, reg(name, strings.Repeat("x", r.IntN(6*block))))
				files = append(files, name)
			case 6:
				l = append(l, symlink(name, randomNames[r.IntN(len(randomNames))]))
			case 7:
				if len(files) > 0 {
					to := files[r.IntN(len(files))]
					if to != name && !strings.HasPrefix(to, name+"/") && !strings.HasPrefix(name, to+"/") {
						files = slices.DeleteFunc(files, func(f string) bool { return f == name })
						l = append(l, link(name, to))
					}
				}
			}
		}
		layers = append(layers, l)
	}
	return layers
}

func checkRandom(t *testing.T, seed uint64) {
	t.Helper()
	var archives [][]byte
	for _, l := range randomLayers(seed) {
		archives = append(archives, archiveOf(t, l))
	}
	if _, err := treeOf(archives); err != nil {
		return // no image: a hard link through a symbolic link to something else
	}
	checkSame(t, archives)
}

func TestRandomLayersHaveTheSameFileSystem(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkRandom(t, seed) })
	}
}

func FuzzRewrite(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(checkRandom)
}

func TestSplitCutsAtTheSize(t *testing.T) {
	var l []entry
	for i := range 100 {
		l = append(l, reg(fmt.Sprintf("f%02d", i), strings.Repeat("x", 4*block)))
	}
	l = append(l, reg("large", strings.Repeat("y", 100*block)), reg("last", "z"))
	const size = 60 * block
	made, err := rewritten(t, [][]byte{archiveOf(t, l)}, []int{1}, size)
	if err != nil {
		t.Fatal(err)
	}
	alone, small := 0, 0
	for i, m := range made {
		headers, err := headersOf(bytes.NewReader(m))
		if err != nil {
			t.Fatal(err)
		}
		if headers[0].Name == "large" {
			alone++
			if len(headers) != 1 {
				t.Errorf("piece %d holds the large file and %d others", i, len(headers)-1)
			}
			continue
		}
		if len(m) > size+2*block { // the end of an archive
			t.Errorf("piece %d has %d bytes, want at most %d", i, len(m), size)
		}
		if len(m) < 2*size/3 {
			small++
		}
	}
	if alone != 1 || small > 1 || len(made) != 14 {
		t.Errorf("%d pieces, %d with the large file, %d small ones", len(made), alone, small)
	}
}

func TestSmallNeighboursAreJoined(t *testing.T) {
	sizes := []int64{10, 20, 30, 200, 50, 60, 5, 1}
	var got [][2]int
	for _, r := range runsOf(Layers{Mode: Split, Size: 100}, sizes) {
		got = append(got, [2]int{r.first, r.last})
	}
	if want := [][2]int{{0, 2}, {3, 3}, {4, 4}, {5, 7}}; !slices.Equal(got, want) {
		t.Errorf("runs %v, want %v", got, want)
	}
	if n := len(runsOf(Layers{Mode: Keep}, sizes)); n != len(sizes) {
		t.Errorf("keep: %d runs", n)
	}
	if n := len(runsOf(Layers{Mode: Squash}, sizes)); n != 1 {
		t.Errorf("squash: %d runs", n)
	}
}

func TestAHardLinkOutOfItsLayerIsRefused(t *testing.T) {
	layers := [][]byte{archiveOf(t, []entry{reg("a", "1")}), archiveOf(t, []entry{link("b", "a")})}
	_, err := rewritten(t, layers, []int{1, 1}, 0)
	if err == nil || !strings.Contains(err.Error(), "--layers keep") {
		t.Errorf("got %v", err)
	}
}
