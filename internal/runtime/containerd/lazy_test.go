// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/need"
	"wangell.loutres.me/test/testutil/syncbuf"
)

// ballast is what a lazy image has besides the probe, in bytes.
const ballast = 24 << 20

// programs is a folder for what tests build. It ends with the process, however that ends: see memoryFolder.
var programs string

// builtSnapshotter returns the program, which is built once.
var builtSnapshotter = sync.OnceValues(func() (string, error) { return e2e.Program(programs, snapshotterProgram) })

// withSnapshotter makes the program available to a test.
func withSnapshotter(t *testing.T) {
	t.Helper()
	need.FUSE(t)
	program, err := builtSnapshotter()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(program)+":"+os.Getenv("PATH"))
}

// lazyBlobs has the blobs of the images of all lazyHubs, which are made once.
var lazyBlobs = registry.NewInMemoryBlobHandler()

// lazyImages are an image with the probe and more, as it is and in eStargz, by their tags.
var lazyImages = sync.OnceValues(func() (map[string]v1.Image, error) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)),
		registry.WithBlobHandler(lazyBlobs)))
	defer server.Close()
	noise := make([]byte, ballast)
	if _, err := rand.Read(noise); err != nil {
		return nil, err
	}
	more, err := image.Build(image.Spec{Files: map[string]image.File{"/ballast": {Data: noise}}, Cmd: []string{"none"}})
	if err != nil {
		return nil, err
	}
	layers, err := more.Layers()
	if err != nil {
		return nil, err
	}
	img, err := runtimetest.Probe()
	if err == nil {
		img, err = mutate.AppendLayers(img, layers...)
	}
	if err != nil {
		return nil, err
	}
	host := strings.TrimPrefix(server.URL, "http://")
	plain, err := name.NewTag(host + "/plain:v1")
	if err == nil {
		err = remote.Write(plain, img)
	}
	if err != nil {
		return nil, err
	}
	lazy, err := name.NewTag(host + "/lazy:v1")
	if err != nil {
		return nil, err
	}
	if _, err := convert.Run(context.Background(), convert.Options{
		Source: plain.Name(), Destination: lazy.Name(), Layers: convert.Layers{Mode: convert.Keep},
		Compression: convert.Compression{Format: convert.EStargz},
	}); err != nil {
		return nil, err
	}
	packed, err := remote.Image(lazy)
	if err == nil {
		_, err = packed.RawConfigFile() // while the server runs; nobody asks for layers
	}
	return map[string]v1.Image{"plain:v1": img, "lazy:v1": packed}, err
})

// lazyHub is a registry with an eStargz image that has more than the probe. It holds back large parts of blobs while
// it is closed.
type lazyHub struct {
	*testRegistry
	ref    string
	closed atomic.Bool
	open   chan struct{}
	dead   atomic.Bool // it refuses all requests
}

func newLazyHub(t *testing.T) *lazyHub {
	t.Helper()
	images, err := lazyImages()
	if err != nil {
		t.Fatal(err)
	}
	h := &lazyHub{testRegistry: newRegistry(t, registry.WithBlobHandler(lazyBlobs)), open: make(chan struct{})}
	for tag, img := range images {
		h.push(t, tag, img) // its blobs are there
	}
	h.ref = h.host + "/lazy:v1"
	h.closed.Store(true)
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		if h.dead.Load() {
			http.Error(w, "out of order", http.StatusServiceUnavailable)
			return true
		}
		var from, to int64
		_, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to)
		if h.closed.Load() && err == nil && to-from > 2<<20 {
			select {
			case <-h.open:
			case <-r.Context().Done():
			}
		}
		return false
	}
	t.Cleanup(h.release)
	return h
}

// release lets everything through.
func (h *lazyHub) release() {
	if h.closed.Swap(false) {
		close(h.open)
	}
}

func (h *lazyHub) service(name string) *v1alpha1.WangellService {
	s := runtimetest.Service(name)
	s.Spec.Image, s.Spec.ImagePullPolicy = h.ref, corev1.PullIfNotPresent
	s.Spec.ImagePull = &v1alpha1.ImagePull{Mode: v1alpha1.PullLazy}
	return s
}

// snapshotterOf returns the snapshotter of a pod's container.
func snapshotterOf(t *testing.T, r *Runtime, p runtime.Pod) string {
	t.Helper()
	c, err := r.client.ContainerService().Get(t.Context(), p.ID)
	if err != nil {
		t.Fatal(err)
	}
	return c.Snapshotter
}

func launchPod(t *testing.T, r *Runtime, s *v1alpha1.WangellService) runtime.Pod {
	t.Helper()
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	return p
}

// A pod answers while most of its image is still in the registry. When the snapshotter is killed, its pods lose their
// files: they are killed with a cause that says so, other pods go on, and the next one starts from what is here.
func TestLazyPodsStartEarlyAndEndWithTheSnapshotter(t *testing.T) {
	withSnapshotter(t)
	r, h := startWithProbe(t, unready(t)), newLazyHub(t)
	s := h.service("lazy")
	full := launchPod(t, r, runtimetest.Service("full"))
	p := launchPod(t, r, s)
	if got := snapshotterOf(t, r, p); got != lazySnapshotter {
		t.Errorf("the pod's snapshotter is %s", got)
	}
	if got := snapshotterOf(t, r, full); got != DefaultSnapshotter {
		t.Errorf("the other pod's snapshotter is %s", got)
	}
	served, err := servedBy(r.own.lazy.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	if err := served.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := runtimetest.NextExit(t, r, p.ID); e.Cause != causeLost || e.Code != 137 {
		t.Errorf("exit %+v, want the cause %q", e, causeLost)
	}
	if err := r.Stop(t.Context(), p.ID, 0); err != nil {
		t.Error(err)
	}
	p = launchPod(t, r, s)
	if got := snapshotterOf(t, r, p); got != lazySnapshotter {
		t.Errorf("the next pod's snapshotter is %s", got)
	}
	runtimetest.Look(t, full)
	h.release()
	for _, id := range []string{p.ID, full.ID} {
		if err := r.Stop(t.Context(), id, 0); err != nil {
			t.Error(err)
		}
	}
}

// A pod that reads a file which cannot be fetched is killed with a cause that names it, and the next one starts from
// all of the image.
func TestAPodWhoseFilesCannotBeHadIsFollowedByOneInFull(t *testing.T) {
	withSnapshotter(t)
	program, err := FindSnapshotter()
	if err != nil {
		t.Fatal(err)
	}
	impatient := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec %s --patience 10s \"$@\"\n", program)
	if err := os.WriteFile(filepath.Join(impatient, snapshotterProgram), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", impatient+":"+os.Getenv("PATH"))
	r, h := startWithProbe(t, unready(t)), newLazyHub(t)
	s := h.service("lazy")
	p, full := launchPod(t, r, s), launchPod(t, r, runtimetest.Service("full"))
	task, err := r.client.TaskService().Get(t.Context(), &tasks.GetRequest{ContainerID: p.ID})
	if err != nil {
		t.Fatal(err)
	}
	h.dead.Store(true)
	_, err = os.ReadFile(fmt.Sprintf("/proc/%d/root/ballast", task.Process.Pid))
	if !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOENT) { // the latter once the pod is killed
		t.Errorf("read: %v", err)
	}
	e := runtimetest.NextExit(t, r, p.ID)
	reason := "503"
	if strings.Contains(e.Cause, "too slow") { // it has not answered within the patience, on a busy machine
		reason = "too slow"
	}
	for _, part := range []string{"/ballast of image " + h.ref, "from registry " + h.host, reason, "check that"} {
		if !strings.Contains(e.Cause, part) {
			t.Errorf("the cause %q does not say %q", e.Cause, part)
		}
	}
	runtimetest.Look(t, full)
	if err := r.Stop(t.Context(), p.ID, 0); err != nil {
		t.Error(err)
	}
	h.dead.Store(false)
	h.release()
	if got := snapshotterOf(t, r, launchPod(t, r, s)); got != DefaultSnapshotter {
		t.Errorf("the next pod's snapshotter is %s", got)
	}
}

// The next process finds the snapshotter and the pods. If the snapshotter has died meanwhile, the pods have lost their
// files, although they run.
func TestTheNextProcessKillsLazyPodsThatLostTheirFiles(t *testing.T) {
	withSnapshotter(t)
	cfg, h := unready(t), newLazyHub(t)
	h.release()
	first, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := launchPod(t, first, h.service("lazy"))
	socket := first.own.lazy.socket
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	served, err := servedBy(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	if err := served.Stop(0); err != nil {
		t.Fatal(err)
	}
	third := start(t, cfg)
	if e := runtimetest.NextExit(t, third, p.ID); e.Cause != causeLost {
		t.Errorf("exit %+v, want the cause %q", e, causeLost)
	}
}

// What cannot be pulled lazily is pulled in full, and the log says why.
func TestLazyFallsBackToAFullPull(t *testing.T) {
	for name, c := range map[string]struct {
		image   string
		prepare func(t *testing.T)
		says    string
	}{
		"plain image": {"plain:v1", withSnapshotter, "image convert --compression estargz"},
		"no program":  {"lazy:v1", func(*testing.T) {}, "install it"},
	} {
		t.Run(name, func(t *testing.T) {
			c.prepare(t)
			var log syncbuf.Buffer
			cfg := unready(t)
			cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			r, h := start(t, cfg), newLazyHub(t)
			h.release()
			s := h.service("fallback")
			s.Spec.Image = h.host + "/" + c.image
			p := launchPod(t, r, s)
			if got := snapshotterOf(t, r, p); got != DefaultSnapshotter {
				t.Errorf("the pod's snapshotter is %s", got)
			}
			if !strings.Contains(log.String(), c.says) {
				t.Errorf("the log does not say %q: %s", c.says, log.String())
			}
		})
	}
}

// Services with both modes can share an image, one after the other.
func TestOneImageIsUsedLazilyAndInFull(t *testing.T) {
	withSnapshotter(t)
	r, h := start(t, unready(t)), newLazyHub(t)
	h.release()
	s := h.service("lazy")
	launchPod(t, r, s)
	s = h.service("full")
	s.Spec.ImagePull = nil
	if got := snapshotterOf(t, r, launchPod(t, r, s)); got != DefaultSnapshotter {
		t.Errorf("the pod's snapshotter is %s", got)
	}
	if err := errors.Join(r.Forget(t.Context(), "default/lazy"), r.Forget(t.Context(), "default/full")); err != nil {
		t.Error(err)
	}
}

// Nothing is left of the snapshotter when an instance is removed: no process and no mount. Images stay.
func TestDestroyEndsTheSnapshotter(t *testing.T) {
	withSnapshotter(t)
	cfg, h := unready(t), newLazyHub(t)
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	launchPod(t, r, h.service("lazy"))
	served, err := servedBy(r.own.lazy.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	if err := r.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-served.Ended():
	default:
		t.Error("the snapshotter runs")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if root := filepath.Dir(cfg.StateDir); strings.Contains(string(mounts), root) {
		t.Errorf("something is mounted in %s: %s", root, mounts)
	}
	// The next instance has the image, and what came of it.
	next := start(t, cfg)
	h.release()
	if got := snapshotterOf(t, next, launchPod(t, next, h.service("lazy"))); got != lazySnapshotter {
		t.Errorf("the pod's snapshotter is %s", got)
	}
}
