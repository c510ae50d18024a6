// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/tarserve"
)

// serve starts a registry that ends with the test, and returns its host. wrap may change how requests are answered.
func serve(t testing.TB, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		handler = wrap(handler)
	}
	server := &http.Server{Handler: handler}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return l.Addr().String()
}

func reference(t testing.TB, text string) name.Reference {
	t.Helper()
	ref, err := name.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func pushed(t testing.TB, text string, img v1.Image) string {
	t.Helper()
	if err := remote.Write(reference(t, text), img); err != nil {
		t.Fatal(err)
	}
	return text
}

func pulled(t testing.TB, text string) v1.Image {
	t.Helper()
	img, err := remote.Image(reference(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func mustRun(t testing.TB, o Options) Result {
	t.Helper()
	o.Verify = true
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !res.Verified {
		t.Error("not verified")
	}
	return res
}

func TestConvertsFromRegistryToRegistry(t *testing.T) {
	host := serve(t, nil)
	layers := oddLayers(t)
	for _, source := range []types.MediaType{types.OCILayer, types.DockerLayer} {
		img := imageOf(t, source, layers...)
		from := pushed(t, host+"/a/source:v1", img)
		before, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		for _, way := range ways {
			t.Run(fmt.Sprint(source, way), func(t *testing.T) {
				o := options(t, from, host+"/b/result:v1", way.layers, way.compression)
				res := mustRun(t, o)
				got := pulled(t, o.Destination)
				checkDiffIDs(t, got)
				if d, err := got.Digest(); err != nil || d.String() != res.Digest.String() {
					t.Errorf("digest %v, %v; the result says %s", d, err, res.Digest)
				}
				checkImage(t, o, before, got, source)
				again := mustRunOnce(t, options(t, from, host+"/c/again:v1", way.layers, way.compression))
				if again.Digest != res.Digest {
					t.Errorf("digests %s and %s of the same conversion", res.Digest, again.Digest)
				}
			})
		}
	}
}

// checkDiffIDs compares the content of layers with the configuration.
func checkDiffIDs(t *testing.T, img v1.Image) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	if len(layers) != len(config.RootFS.DiffIDs) {
		t.Fatalf("%d layers, %d in the configuration", len(layers), len(config.RootFS.DiffIDs))
	}
	for i, l := range layers {
		blob, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		archive, err := archiveIn(blob)
		if err != nil {
			t.Fatal(err)
		}
		d, err := digest.FromReader(archive)
		if err := errors.Join(err, archive.Close()); err != nil {
			t.Fatal(err)
		}
		if d.String() != config.RootFS.DiffIDs[i].String() {
			t.Errorf("layer %d has the content %s, and the configuration says %s", i, d, config.RootFS.DiffIDs[i])
		}
	}
}

// checkImage checks media types, configuration and history.
func checkImage(t *testing.T, o Options, before *v1.ConfigFile, got v1.Image, source types.MediaType) {
	t.Helper()
	manifest, err := got.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	docker := source == types.DockerLayer && (o.Compression.Format == None || o.Compression.Format == Gzip)
	want := map[string]types.MediaType{None: types.OCIUncompressedLayer, Gzip: types.OCILayer, EStargz: types.OCILayer,
		Zstd: types.OCILayerZStd, ZstdChunked: types.OCILayerZStd}[o.Compression.Format]
	if docker {
		want = map[string]types.MediaType{None: types.DockerUncompressedLayer, Gzip: types.DockerLayer}[o.Compression.Format]
	}
	for _, l := range manifest.Layers {
		if l.MediaType != want {
			t.Errorf("layer of type %s, want %s", l.MediaType, want)
		}
		if lazy := l.Annotations["containerd.io/snapshot/stargz/toc.digest"] != ""; lazy != o.Compression.indexed() {
			t.Errorf("annotations %v", l.Annotations)
		}
	}
	if isDocker := manifest.MediaType == types.DockerManifestSchema2; isDocker != docker {
		t.Errorf("manifest of type %s", manifest.MediaType)
	}
	after, err := got.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(after.Config) != fmt.Sprint(before.Config) || after.Architecture != before.Architecture {
		t.Errorf("configuration %+v, want %+v", after.Config, before.Config)
	}
	full, steps := 0, ""
	for i, h := range after.History {
		if !h.EmptyLayer {
			full++
		}
		if i == 0 || after.History[i-1].CreatedBy != h.CreatedBy {
			steps += h.CreatedBy + ","
		}
	}
	if full != len(manifest.Layers) || steps != "step 0,ENV 0,step 1,ENV 1,step 2,ENV 2,step 3,ENV 3," {
		t.Errorf("%d of %d layers in the history: %s", full, len(manifest.Layers), steps)
	}
}

func TestUnchangedLayersAndConfigurationsStayByteForByte(t *testing.T) {
	host := serve(t, nil)
	img := imageOf(t, types.OCILayer, oddLayers(t)...)
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	res := mustRun(t, options(t, pushed(t, host+"/source:v1", img), host+"/same:v1", Keep, Gzip))
	if res.Digest.String() != want.String() {
		t.Errorf("digest %s, want %s", res.Digest, want)
	}
	res = mustRun(t, options(t, host+"/source:v1", host+"/zstd:v1", Keep, Zstd))
	before, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if after, err := pulled(t,
		host+"/zstd:v1").ConfigName(); err != nil || after != before || res.Digest.String() == want.String() {
		t.Errorf("configuration %v, %v; want %v", after, err, before)
	}
}

func TestEveryPlatformIsConvertedAndAttestationsAreNot(t *testing.T) {
	host := serve(t, nil)
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	index = mutate.Annotations(index, map[string]string{"about": "index"}).(v1.ImageIndex)
	for _, p := range []string{"linux/arm64/v8", "linux/amd64"} {
		platform, err := v1.ParsePlatform(p)
		if err != nil {
			t.Fatal(err)
		}
		img := imageOf(t, types.OCILayer, archiveOf(t, []entry{reg("platform", p)}))
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{
			Platform: platform, Annotations: map[string]string{"about": p}}})
	}
	index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: imageOf(t, types.OCILayer), Descriptor: v1.Descriptor{
		Platform:    &v1.Platform{OS: "unknown", Architecture: "unknown"},
		Annotations: map[string]string{attestation: "attestation-manifest"}}})
	if err := remote.WriteIndex(reference(t, host+"/all:v1"), index); err != nil {
		t.Fatal(err)
	}
	res := mustRun(t, options(t, host+"/all:v1", host+"/all:zstd", "split=1MB", Zstd))
	got, err := remote.Index(reference(t, host+"/all:zstd"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := got.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Manifests) != 2 || len(res.Dropped) != 1 || m.Annotations["about"] != "index" ||
		m.Manifests[0].Platform.String() != "linux/arm64/v8" || m.Manifests[1].Annotations["about"] != "linux/amd64" {
		t.Errorf("index %+v, dropped %+v", m, res.Dropped)
	}
	o := options(t, host+"/all:v1", host+"/one:v1", Keep, Zstd)
	o.Platforms = []string{"linux/arm64"}
	if res = mustRun(t,
		o); res.MediaType != string(types.OCIManifestSchema1) || res.Images[0].Platform != "linux/arm64/v8" {
		t.Errorf("one platform: %+v", res)
	}
	o.Platforms = []string{"linux/s390x"}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is for linux/arm64") {
		t.Errorf("a platform that is missing: %v", err)
	}
	// Also as a tarball.
	file := filepath.Join(t.TempDir(), "all.tar")
	mustRun(t, options(t, host+"/all:v1", file, "split=1MB", Zstd))
	s, err := tarserve.Start(file)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if want := reference(t, host+"/all:v1").Name(); s.Name() != want {
		t.Errorf("name %q, want %q", s.Name(), want)
	}
	back, err := remote.Index(reference(t, s.Ref()))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := back.Digest(); err != nil || d == (v1.Hash{}) {
		t.Errorf("index of the tarball: %v, %v", d, err)
	}
	for _, m := range m.Manifests {
		img, err := back.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkDiffIDs(t, img)
	}
}

func TestTarballsAreEqualByteForByte(t *testing.T) {
	source := saved(t, imageOf(t, types.OCILayer, oddLayers(t)...))
	var all [][]byte
	for range 2 {
		file := filepath.Join(t.TempDir(), "x.tar")
		mustRun(t, options(t, source, file, "split=256KiB", Zstd))
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text)
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("two conversions give different tarballs")
	}
}

// cutting breaks each answer with a blob after a number of bytes, unless it begins there or later.
func cutting(after int64, ranges *atomic.Int64) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
				if r.Header.Get("Range") != "" {
					ranges.Add(1)
				}
				w = &cutWriter{ResponseWriter: w, left: after}
			}
			next.ServeHTTP(w, r)
		})
	}
}

type cutWriter struct {
	http.ResponseWriter
	left int64
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if int64(len(p)) <= w.left {
		w.left -= int64(len(p))
		return w.ResponseWriter.Write(p)
	}
	_, _ = w.ResponseWriter.Write(p[:w.left])
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

func TestADownloadThatIsCutGoesOn(t *testing.T) {
	var ranges atomic.Int64
	host := serve(t, cutting(40<<10, &ranges))
	random := make([]entry, 1)
	random[0] = reg("random", noise(300<<10))
	from := pushed(t, host+"/source:v1", imageOf(t, types.OCILayer, archiveOf(t, random)))
	file := filepath.Join(t.TempDir(), "x.tar")
	o := options(t, from, file, Keep, Zstd)
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if ranges.Load() < 5 {
		t.Errorf("only %d requests for the rest of a blob", ranges.Load())
	}
}

// noise returns bytes that cannot be compressed.
func noise(n int) string {
	var b strings.Builder
	for x := uint32(1); b.Len() < n; {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		b.WriteByte(byte(x))
	}
	return b.String()
}

// failing fails uploads after a number of them, and counts.
type failing struct {
	mu      sync.Mutex
	allowed int
	uploads []string
	gets    []string

	group sync.WaitGroup // allowed uploads that are not whole; the others are refused once there is none
	// recorded returns how many layers the client has recorded as delivered: it may not know yet of an upload that is
	// whole. Refusals wait for these records, because the client drops what it is about to record at the first one.
	recorded func() int
}

func (f *failing) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			f.gets = append(f.gets, r.URL.Path)
		}
		if r.Method == http.MethodPost && strings.Contains(r.URL.Path, "/result/") {
			if len(f.uploads) >= f.allowed {
				f.mu.Unlock()
				f.group.Wait()
				for r.Context().Err() == nil && f.recorded() < f.allowed {
					time.Sleep(time.Millisecond)
				}
				w.WriteHeader(http.StatusForbidden)
				return
			}
			f.uploads = append(f.uploads, r.URL.Path)
			f.group.Add(1)
		}
		f.mu.Unlock()
		next.ServeHTTP(w, r)
		if r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/result/image/blobs/") {
			f.group.Done()
		}
	})
}

func TestAConversionGoesOnWhereItEnded(t *testing.T) {
	var layers [][]byte
	for i := range 6 {
		layers = append(layers, archiveOf(t, []entry{reg(fmt.Sprint("f", i), noise(100<<10+i))}))
	}
	for _, way := range []string{Keep, "split=64KiB"} {
		f := &failing{allowed: 2}
		host := serve(t, f.wrap) // which knows blobs in all repositories
		from := pushed(t, host+"/source:v1", imageOf(t, types.OCILayer, layers...))
		destination := host + "/the/result/image:v1"
		o := options(t, from, destination, way, Zstd)
		o.Resume = t.TempDir()
		f.recorded = func() (n int) {
			files, _ := filepath.Glob(filepath.Join(o.Resume, workRecords, "*.json"))
			for _, file := range files {
				if text, err := os.ReadFile(file); err == nil && json.Unmarshal(text, &[]packed{}) == nil {
					n++
				}
			}
			return n
		}
		if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "docker login") {
			t.Fatal("uploads failed, and the conversion says", err)
		}
		if _, err := remote.Get(reference(t, destination)); err == nil {
			t.Fatal("the image has its name although it is not whole")
		}
		f.mu.Lock()
		f.allowed, f.gets = 1000, nil
		f.mu.Unlock()
		res := mustRunOnce(t, o)
		f.mu.Lock()
		var again []string
		for _, g := range f.gets {
			if !slices.Contains(again, g) && strings.Contains(g, "/source/") {
				again = append(again, g)
			}
		}
		f.mu.Unlock()
		if len(again) > 1+len(layers)-2 { // the configuration, and layers that were not delivered
			t.Errorf("%s: %d blobs are read again: %v", way, len(again), again)
		}
		fresh := mustRun(t, options(t, from, host+"/fresh:v1", way, Zstd))
		if fresh.Digest != res.Digest {
			t.Errorf("%s: digest %s, without an interruption %s", way, res.Digest, fresh.Digest)
		}
		if left, err := os.ReadDir(filepath.Join(o.Resume, workBlobs)); err != nil || len(left) > 0 {
			t.Errorf("blobs are left: %v, %v", left, err)
		}
	}
}

// mustRunOnce is mustRun without comparing the result with the source.
func mustRunOnce(t *testing.T, o Options) Result {
	t.Helper()
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestNothingIsLeftOfAConversionThatIsInterrupted(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	source := saved(t, imageOf(t, types.OCILayer, oddLayers(t)...))
	for _, way := range ways {
		ctx, cancel := context.WithCancel(t.Context())
		file := filepath.Join(t.TempDir(), "x.tar")
		o := options(t, source, file, way.layers, way.compression)
		o.Progress = func(_ string, done, total int64) {
			if done > total/3 {
				cancel()
			}
		}
		_, err := Run(ctx, o)
		cancel()
		if o.Layers.Mode == Keep && o.Compression.Format == Gzip {
			continue // copied, and may be done before
		}
		if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
			t.Errorf("%v: %v", way, err)
		}
		for _, dir := range []string{temp, filepath.Dir(file)} {
			if left, err := filepath.Glob(filepath.Join(dir, "*wangell-convert*")); err != nil || len(left) > 0 {
				t.Errorf("%v: left: %v, %v", way, left, err)
			}
		}
		if _, err := os.Stat(file); err == nil {
			t.Errorf("%v: a tarball is there", way)
		}
	}
}

func TestVerifyTellsWhatDiffers(t *testing.T) {
	trees := make([]tree, 2)
	for i, entries := range [][]entry{
		{reg("same", "1"), reg("gone", "1"), reg("content", "aa"), dir("d", 0o700), reg("kind", "1"), reg("h", "1"),
			link("i", "h")},
		{reg("same", "1"), reg("new", "1"), reg("content", "bb"), dir("d", 0o755), dir("kind", 0o700), link("i", "same"),
			reg("h", "1")},
	} {
		var err error
		if trees[i], err = treeOf([][]byte{archiveOf(t, entries)}); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Join(compare(trees[0], trees[1]), "\n")
	for _, want := range []string{
		"/content: other content", "/d: mode 0755 instead of 0700", "/gone is missing in the result (file)",
		"/kind: directory instead of file", "/new is only in the result (file)", "/i is no longer a hard link",
		"/same: mode", "/i has become a hard link|/same has become a hard link",
	} {
		found := false
		for _, w := range strings.Split(want, "|") {
			found = found || strings.Contains(got, w)
		}
		if !found {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// A new encoder for each file, of ten megabytes with zstd, would make an image of many small files take hours.
func TestManyFilesArePackedWithOneEncoder(t *testing.T) {
	var entries []entry
	for i := range 500 {
		entries = append(entries, reg(fmt.Sprintf("f%d", i), "content"))
	}
	archive := archiveOf(t, entries)
	for _, format := range []string{ZstdChunked, EStargz} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		var sums []digest.Digest
		for range 2 {
			l, err := pack(filepath.Join(t.TempDir(), "blob"), bytes.NewReader(archive), Compression{Format: format})
			if err != nil {
				t.Fatal(err)
			}
			sums = append(sums, l.Descriptor.Digest)
		}
		runtime.ReadMemStats(&after)
		if sums[0] != sums[1] {
			t.Errorf("%s: the same archive gave %v", format, sums)
		}
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 200<<20 {
			t.Errorf("%s: 1,000 files took %d MiB of memory", format, taken>>20)
		}
	}
}

// The table of contents of such formats is JSON, in which another name would stand.
func TestNamesThatAreNotUTF8AreRefusedWhereATableHasThem(t *testing.T) {
	for what, e := range map[string]entry{
		"name": reg("caf\xe9", "1"), "target": symlink("link", "caf\xe9"), "folder": dir("caf\xe9", 0o755),
	} {
		archive := archiveOf(t, []entry{reg("a", "1"), e})
		for _, format := range []string{EStargz, ZstdChunked, Zstd, Gzip, None} {
			c := Compression{Format: format}
			_, err := pack(filepath.Join(t.TempDir(), "blob"), bytes.NewReader(archive), c)
			if !c.indexed() && err != nil {
				t.Errorf("%s with %s: %v", what, format, err)
			}
			if c.indexed() && (err == nil || !strings.Contains(err.Error(), "not UTF-8")) {
				t.Errorf("%s with %s: %v, want a refusal", what, format, err)
			}
		}
	}
}

// With a look at the whole tree for each removal, this would take until the test's deadline.
func TestManyWhiteoutsAreVerifiedInTimeOfTheirNumber(t *testing.T) {
	const files = 400_000
	all := newTree()
	for i := range files {
		all.set(fmt.Sprintf("d%d/f%d", i%1000, i), &file{size: int64(i)})
	}
	for i := range files {
		all.remove(fmt.Sprintf("d%d/f%d", i%1000, i), true)
	}
	for i := range files {
		all.remove(fmt.Sprintf("none%d", i), true)
	}
	if len(all.files) > 0 || len(all.below["d1"]) > 0 {
		t.Errorf("%d files are left", len(all.files))
	}
}

// A frame of zstd that asks for a window of 2 GiB makes a decoder allocate that.
func TestLargeWindowsOfZstdAreRefused(t *testing.T) {
	frame := append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, (31 - 10) << 3, 5<<3 | 1, 0, 0}, "hello"...)
	r, kind, err := unpacked(bytes.NewReader(frame))
	if err != nil || kind != Zstd {
		t.Fatal(kind, err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err == nil || !strings.Contains(err.Error(), "window of more than 128 MiB") {
		t.Errorf("%q, %v", got, err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	host := serve(t, nil)
	good := pushed(t, host+"/good:v1", imageOf(t, types.OCILayer, archiveOf(t, []entry{reg("a", "1")})))
	outside := pushed(t, host+"/outside:v1", imageOf(t, types.OCILayer, archiveOf(t, []entry{reg("a", noise(1<<17))}),
		archiveOf(t, []entry{link("b", "a"), reg("c", noise(1<<17))})))
	tiny := make([]entry, 140)
	for i := range tiny {
		tiny[i] = reg(fmt.Sprint("f", i), noise(64<<10))
	}
	many := pushed(t, host+"/many:v1", imageOf(t, types.OCILayer, archiveOf(t, tiny)))
	for _, c := range []struct{ from, to, layers, want string }{
		{host + "/none:v1", host + "/result:v1", Keep, "not found in registry " + host + ": check the name"},
		{"/no/such.tar", host + "/result:v1", Keep, "tarball /no/such.tar"},
		{"Not A Name", host + "/result:v1", Keep, "write [REGISTRY/]NAME[:TAG], or the path of a tarball"},
		{good, "/no/such/folder/x.tar", Keep, "tarball /no/such/folder/x.tar"},
		{good, host + "/result@sha256:" + strings.Repeat("0", 64), Keep, "name a tag"},
		{outside, host + "/result:v1", "split=64KiB", "only --layers keep can copy it"},
		{many, host + "/result:v1", "split=64KiB", "use larger pieces than --layers split=65536"},
	} {
		_, err := Run(t.Context(), options(t, c.from, c.to, c.layers, Zstd))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.from, err, c.want)
		}
	}
}

func TestDamageIsFound(t *testing.T) {
	archive := archiveOf(t, []entry{reg("a", "1")})
	l := staticLayer(t, archive, types.OCILayer).(memoryLayer)
	l.plain = []byte("something else") // what the configuration says
	img, err := mutate.Append(mutate.MediaType(empty.Image, types.OCIManifestSchema1), mutate.Addendum{Layer: l})
	if err != nil {
		t.Fatal(err)
	}
	from := pushed(t, serve(t, nil)+"/source:v1", mutate.ConfigMediaType(img, types.OCIConfigJSON))
	for _, way := range []string{Keep, "split=1MB"} {
		_, err := Run(t.Context(), options(t, from, filepath.Join(t.TempDir(), "x.tar"), way, Zstd))
		if err == nil || !strings.Contains(err.Error(), "the image is damaged") {
			t.Errorf("%s: %v", way, err)
		}
	}
}

func TestParsing(t *testing.T) {
	for text, want := range map[string]string{
		"keep": "keep", "squash": "squash", "split=64MB": "split=64000000", "split=1.5GiB": "split=1610612736",
		"split=100k": "split=100000", "split=65536": "split=65536", "split": "split=64MB",
		"split=":  "want a number with a unit",
		"split=x": "want a number with a unit", "split=1": "too small", "split=-5MB": "too small",
		"join":      "want keep, squash or",
		"split=NaN": "want a number", "split=1e30": "want a number", "keep=3": "want keep, squash or",
	} {
		l, err := ParseLayers(text)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && l.String() != want {
			t.Errorf("%s: %v, %v, want %s", text, l, err, want)
		}
	}
	for text, want := range map[string]string{
		"none": "none", "gzip": "gzip", "zstd": "zstd", "zstd:19": "zstd:19", "estargz": "estargz",
		"zstdchunked": "zstdchunked",
		"zstd:0":      "from 1 to 22", "zstd:23": "from 1 to 22", "zstd:": "from 1 to 22", "gzip:9": "only zstd has levels",
		"lz4": "unknown compression", "": "unknown compression",
	} {
		c, err := ParseCompression(text)
		if err != nil && !strings.Contains(err.Error(), want) || err == nil && c.String() != want {
			t.Errorf("%s: %v, %v, want %s", text, c, err, want)
		}
	}
}

func TestConfigurationsKeepWhatIsNotKnown(t *testing.T) {
	old := []byte(`{"architecture":"amd64","big":12345678901234567890,"os":"linux","unknown":{"b":1,"a":2},
		"history":[{"created_by":"one"},{"created_by":"two","comment":"c"},{"created_by":"env","empty_layer":true}],
		"rootfs":{"type":"layers","diff_ids":["sha256:1","sha256:2"]}}`)
	layers := []layer{{diffID: "sha256:1"}, {diffID: "sha256:2"}}
	text, err := newConfig(old, layers, []run{{first: 0, last: 1, out: []packed{{DiffID: "sha256:3"},
		{DiffID: "sha256:4"}}}})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Big     json.Number
		Unknown json.RawMessage
		History []struct {
			CreatedBy string `json:"created_by"`
			Comment   string
			Empty     bool `json:"empty_layer"`
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Big != "12345678901234567890" || string(got.Unknown) != `{"b":1,"a":2}` || len(got.History) != 4 ||
		!got.History[0].Empty || !strings.HasPrefix(got.History[1].Comment, "c; wangell image convert: piece 1 of 2") {
		t.Errorf("%s", text)
	}
}
