// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/opencontainers/image-spec/identity"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/images/lazy/failures"
	"wangell.loutres.me/test/testutil/containerdtest"
	"wangell.loutres.me/test/testutil/need"
)

func TestMain(m *testing.M) { containerdtest.Main(m) }

// pluginName is what containerd calls the snapshotter in these tests.
const pluginName = "wangell-lazy"

// hub is a registry that can die, and that counts what it sends of blobs.
type hub struct {
	host string
	dead atomic.Bool
	mute atomic.Bool // takes requests and does not answer
	sent atomic.Int64
	gate atomic.Pointer[chan struct{}] // blocks requests for more than 1 MiB, until it is closed
	held atomic.Int64                  // requests that the gate has blocked
}

func newHub(t testing.TB) *hub {
	h := &hub{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.dead.Load() {
			panic(http.ErrAbortHandler)
		}
		if h.mute.Load() {
			<-r.Context().Done()
			return
		}
		var from, to int64
		_, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		if gate := h.gate.Load(); err == nil && to-from > aheadBlocks*blockSize && gate != nil {
			h.held.Add(1)
			select {
			case <-*gate:
			case <-r.Context().Done():
				return
			}
			if h.dead.Load() {
				panic(http.ErrAbortHandler)
			}
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			w = &counting{w, &h.sent}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.host = strings.TrimPrefix(server.URL, "http://")
	return h
}

type counting struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	c.sent.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

// push pushes an image with a layer for each of files, in a compression of image convert.
func (h *hub) push(t testing.TB, compression string, files ...map[string]image.File) string {
	t.Helper()
	img := empty.Image
	for _, f := range files {
		one, err := image.Build(image.Spec{Files: f, Entrypoint: []string{"/none"}})
		if err != nil {
			t.Fatal(err)
		}
		layers, err := one.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, layers...); err != nil {
			t.Fatal(err)
		}
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	plain := h.host + "/plain:v1"
	h.write(t, plain, img)
	if compression == "" {
		return plain
	}
	how, err := convert.ParseCompression(compression)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := convert.ParseLayers("keep")
	if err != nil {
		t.Fatal(err)
	}
	ref := h.host + "/" + compression + ":v1"
	if _, err := convert.Run(t.Context(), convert.Options{Source: plain, Destination: ref, Layers: layers,
		Compression: how}); err != nil {
		t.Fatal(err)
	}
	return ref
}

func (h *hub) write(t testing.TB, ref string, img v1.Image) {
	t.Helper()
	to, err := name.NewTag(ref)
	if err == nil {
		err = remote.Write(to, img)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// setup is a containerd with the snapshotter.
type setup struct {
	*containerdtest.Containerd
	t      testing.TB
	cfg    Config
	server *Server
	mu     sync.Mutex
	events []failures.Failure
}

func newSetup(t testing.TB) *setup { return newSetupWith(t, Config{}) }

// newSetupWith starts one with some fields of a Config.
func newSetupWith(t testing.TB, cfg Config) *setup {
	need.FUSE(t)
	dir, err := os.MkdirTemp("", "lz")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &setup{t: t}
	s.cfg = Config{
		Root: filepath.Join(dir, "root"), Socket: filepath.Join(dir, "s.sock"),
		Patience: cfg.Patience, Settle: cfg.Settle,
		Hosts: docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost)),
		Log:   slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Failed: func(f failures.Failure) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, f)
		},
	}
	s.start()
	t.Cleanup(func() {
		if err := s.server.Close(); err != nil {
			t.Error(err)
		}
		if left := mounts(t, dir); len(left) > 0 {
			t.Errorf("left mounted: %v", left)
		}
	})
	s.Containerd = containerdtest.StartWith(t, 0, fmt.Sprintf(`
[proxy_plugins.%s]
  type = "snapshot"
  address = %q
`, pluginName, s.cfg.Socket))
	return s
}

// fetchAll lets the background begin that a long Config.Settle holds back.
func (s *setup) fetchAll() {
	store := s.server.store
	store.mu.Lock()
	defer store.mu.Unlock()
	store.settle = 0
	store.changed.Broadcast()
}

// wait sets for how long the reads that begin now wait for the registry.
func (s *setup) wait(patience time.Duration) {
	store := s.server.store
	store.mu.Lock()
	defer store.mu.Unlock()
	store.patience = patience
}

func (s *setup) start() {
	s.t.Helper()
	var err error
	if s.server, err = Start(s.t.Context(), s.cfg); err != nil {
		s.t.Fatal(err)
	}
}

// pull pulls an image with a snapshotter.
func (s *setup) pull(ref, snapshotter string) client.Image {
	s.t.Helper()
	img, err := s.Client.Pull(s.t.Context(), ref, client.WithPullUnpack, client.WithPullSnapshotter(snapshotter),
		client.WithImageHandlerWrapper(snapshotters.AppendInfoHandlerWrapper(ref)))
	if err != nil {
		s.t.Fatal(err)
	}
	return img
}

// removeImages removes all images, also by the names that the CRI plugin gives them meanwhile. It may do so even after
// that, for an event that it is just handling.
func (s *setup) removeImages() {
	s.t.Helper()
	store := s.Client.ImageService()
	containerdtest.Until(s.t, "no image is left", func() bool {
		list, err := store.List(s.t.Context())
		for _, i := range list {
			if e := store.Delete(s.t.Context(), i.Name, images.SynchronousDelete()); !errdefs.IsNotFound(e) {
				err = errors.Join(err, e)
			}
		}
		if err != nil {
			s.t.Fatal(err)
		}
		return len(list) == 0
	})
}

// mount mounts an image as for a container, and returns where and what removes it.
func (s *setup) mount(img client.Image, snapshotter string) (dir string, remove func()) {
	s.t.Helper()
	ids, err := img.RootFS(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, done, err := s.Client.WithLease(s.t.Context(), leases.WithRandomID())
	if err != nil {
		s.t.Fatal(err)
	}
	key := fmt.Sprintf("test-%d", time.Now().UnixNano())
	list, err := s.Client.SnapshotService(snapshotter).Prepare(ctx, key, identity.ChainID(ids).String())
	if err != nil {
		s.t.Fatal(err)
	}
	dir = s.t.TempDir()
	if err := mount.All(list, dir); err != nil {
		s.t.Fatal(err)
	}
	return dir, func() {
		if err := errors.Join(mount.UnmountAll(dir, 0), s.Client.SnapshotService(snapshotter).Remove(ctx, key),
			done(ctx)); err != nil {
			s.t.Error(err)
		}
	}
}

// mounts returns what is mounted below a folder.
func mounts(t testing.TB, dir string) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, dir) || strings.HasPrefix(line, fsName+" ") {
			out = append(out, line)
		}
	}
	return out
}

func noise(n int) image.File {
	data := make([]byte, n)
	_, _ = rand.Read(data)
	return image.File{Data: data}
}

func check(t testing.TB, file string, want image.File) {
	t.Helper()
	got, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got, want.Data) {
		t.Errorf("%s: %d bytes, %v; want %d", file, len(got), err, len(want.Data))
	}
}

// A container starts, and reads what it needs, while nothing else of the image has come; then everything comes by
// itself, and once only.
func TestAContainerReadsBeforeTheImageIsThere(t *testing.T) {
	for _, compression := range []string{"estargz", "zstdchunked"} {
		t.Run(compression, func(t *testing.T) {
			h, s := newHub(t), newSetupWith(t, Config{Settle: time.Hour})
			wanted, rest, other := noise(100<<10), noise(12<<20), noise(6<<20)
			ref := h.push(t, compression, map[string]image.File{"/rest": rest, "/a/wanted": wanted},
				map[string]image.File{"/other": other})
			h.sent.Store(0)
			dir, remove := s.mount(s.pull(ref, pluginName), pluginName)
			defer remove()
			check(t, filepath.Join(dir, "a/wanted"), wanted)
			if sent := h.sent.Load(); sent > 8<<20 {
				t.Errorf("the registry has sent %d bytes before the first read ended", sent)
			}
			if err := os.WriteFile(filepath.Join(dir, "a/new"), []byte("x"), 0o600); err != nil {
				t.Error(err)
			}
			s.fetchAll()
			containerdtest.Until(t, "both layers are complete", func() bool { return s.server.Stats().Complete == 2 })
			if sent := h.sent.Load(); sent > 20<<20 {
				t.Errorf("the registry has sent %d bytes in all", sent)
			}
			checkMetrics(t, s.server, h.sent.Load())
			h.dead.Store(true)
			check(t, filepath.Join(dir, "rest"), rest)
			check(t, filepath.Join(dir, "other"), other)
		})
	}
}

func TestALayerOfAnotherFormatIsPulledAsUsual(t *testing.T) {
	h, s := newHub(t), newSetup(t)
	file := noise(1 << 20)
	dir, remove := s.mount(s.pull(h.push(t, "", map[string]image.File{"/file": file}), pluginName), pluginName)
	defer remove()
	h.dead.Store(true)
	check(t, filepath.Join(dir, "file"), file)
	if n := s.server.Stats().Blobs; n != 0 {
		t.Errorf("%d layers are mounted", n)
	}
}

// Reads wait while the registry is away. When that lasts, they fail, and an event says so. They
// succeed when it is back.
func TestAReadFailsWhenTheRegistryStaysAway(t *testing.T) {
	h, s := newHub(t), newSetup(t)
	files := map[string]image.File{"/a": noise(12 << 20), "/b": noise(3 << 20)}
	gate := make(chan struct{})
	h.gate.Store(&gate)
	dir, remove := s.mount(s.pull(h.push(t, "estargz", files), pluginName), pluginName)
	defer remove()
	h.dead.Store(true)
	close(gate)
	const patience = time.Second
	s.wait(patience)
	begin := time.Now()
	if _, err := os.ReadFile(filepath.Join(dir, "a")); !errors.Is(err, syscall.EIO) {
		t.Errorf("read without a registry: %v, want EIO", err)
	}
	if took := time.Since(begin); took < patience {
		t.Errorf("the read failed after %v", took)
	}
	containerdtest.Until(t, "the event", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.events) != 1 {
			return false
		}
		f := s.events[0]
		return slices.Equal(f.Files, []string{"/a"}) && f.Registry == h.host && strings.Contains(f.Image, h.host)
	})
	s.wait(time.Hour)
	back := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(filepath.Join(dir, "b"))
		back <- err
	}()
	time.AfterFunc(patience/4, func() { h.dead.Store(false) })
	if err := <-back; err != nil {
		t.Errorf("a read during a short absence of the registry: %v", err)
	}
	check(t, filepath.Join(dir, "a"), files["/a"])
	check(t, filepath.Join(dir, "b"), files["/b"])
}

// After a restart the same images can be used, without the registry as far as they had come, and what is missing comes.
func TestARestartMountsTheSameAgain(t *testing.T) {
	h, s := newHub(t), newSetup(t)
	files := map[string]image.File{"/a": noise(9 << 20), "/wanted": noise(1000)}
	gate := make(chan struct{})
	h.gate.Store(&gate)
	img := s.pull(h.push(t, "estargz", files), pluginName)
	dir, remove := s.mount(img, pluginName)
	check(t, filepath.Join(dir, "wanted"), files["/wanted"])
	remove()
	if err := s.server.Close(); err != nil {
		t.Fatal(err)
	}
	if left := mounts(t, s.cfg.Root); len(left) > 0 {
		t.Errorf("after the end are mounted: %v", left)
	}
	h.dead.Store(true)
	s.start()
	// It does not try for a while if its garbage collection has missed the snapshotter.
	var found int
	var walked error
	t.Cleanup(func() { t.Logf("containerd knows %d snapshots: %v", found, walked) })
	containerdtest.Until(t, "containerd has connected to the snapshotter again", func() bool {
		found = 0
		walked = s.Client.SnapshotService(pluginName).Walk(t.Context(), func(context.Context, snapshots.Info) error {
			found++
			return nil
		})
		return walked == nil && found > 0
	})
	dir, remove = s.mount(img, pluginName)
	defer remove()
	check(t, filepath.Join(dir, "wanted"), files["/wanted"])
	h.dead.Store(false)
	close(gate)
	check(t, filepath.Join(dir, "a"), files["/a"])
}

// With the image everything goes: mounts, files and requests.
func TestNothingIsLeftOfAnImageThatIsRemoved(t *testing.T) {
	h, s := newHub(t), newSetup(t)
	gate := make(chan struct{})
	defer close(gate)
	h.gate.Store(&gate)
	s.pull(h.push(t, "estargz", map[string]image.File{"/a": noise(9 << 20)}), pluginName)
	if got := mounts(t, s.cfg.Root); len(got) != 1 {
		t.Fatalf("mounted: %v", got)
	}
	// The CRI plugin gives it another name a little later.
	containerdtest.Until(t, "both names", func() bool {
		list, err := s.Client.ImageService().List(t.Context())
		return err == nil && len(list) == 2
	})
	containerdtest.Until(t, "no mount and no file is left", func() bool {
		s.removeImages()
		var files int
		for _, dir := range []string{"blobs", "snapshotter/snapshots", "cache"} {
			err := filepath.WalkDir(filepath.Join(s.cfg.Root, dir), func(_ string, e fs.DirEntry, err error) error {
				if err == nil && !e.IsDir() {
					files++
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		return files == 0 && len(mounts(t, s.cfg.Root)) == 0 && s.server.Stats().Blobs == 0
	})
}

func TestOneSnapshotterServesASocket(t *testing.T) {
	s := newSetup(t)
	if _, err := Start(t.Context(), s.cfg); err == nil || !strings.Contains(err.Error(), "another snapshotter") {
		t.Errorf("a second one: %v", err)
	}
}
