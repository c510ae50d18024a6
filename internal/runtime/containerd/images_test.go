// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/need"
)

// testRegistry is a registry in this process that counts requests for blobs.
type testRegistry struct {
	host  string
	blobs atomic.Int64
	// before, if set, is called with every request. It returns true if it has answered the request.
	before func(http.ResponseWriter, *http.Request) bool
}

func newRegistry(t *testing.T, options ...registry.Option) *testRegistry {
	t.Helper()
	r := &testRegistry{}
	inner := registry.New(append(options, registry.Logger(log.New(io.Discard, "", 0)))...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
			r.blobs.Add(1)
		}
		if r.before == nil || !r.before(w, req) {
			inner.ServeHTTP(w, req)
		}
	}))
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

func (r *testRegistry) push(t *testing.T, tag string, img v1.Image) string {
	t.Helper()
	ref, err := name.NewTag(r.host + "/" + tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return ref.String()
}

func probe(t *testing.T) v1.Image {
	t.Helper()
	img, err := runtimetest.Probe()
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestPullFollowsThePullPolicy(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	s := runtimetest.Service("pulled")
	s.Spec.Image, s.Spec.ImagePullPolicy = reg.push(t, "team/probe:v1", probe(t)), corev1.PullIfNotPresent
	var mu sync.Mutex
	var last [2]int64
	progress := func(image string, done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		if image != s.Spec.Image || done > total && total != 0 {
			t.Errorf("progress of %s: %d of %d", image, done, total)
		}
		last = [2]int64{done, total}
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if err := r.Prepare(t.Context(), s, progress); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	// A layer and a configuration.
	if n := reg.blobs.Load(); n != 2 {
		t.Errorf("%d blobs were fetched by 5 pulls at once, want 2", n)
	}
	if last[0] == 0 || last[0] != last[1] {
		t.Errorf("the last progress is %d of %d", last[0], last[1])
	}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	list, err := r.Images(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != s.Spec.Image || list[0].Size == 0 {
		t.Errorf("images %+v, %v", list, err)
	}

	// Always asks the registry again and uses its current image.
	newer, err := image.Build(image.Spec{Files: map[string]image.File{"/x": {}}, Entrypoint: []string{"/none"}})
	if err != nil {
		t.Fatal(err)
	}
	reg.push(t, "team/probe:v1", newer)
	again, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Errorf("IfNotPresent pulled the new image: %v", err)
	}
	s.Spec.ImagePullPolicy = corev1.PullAlways
	if _, err := r.Start(t.Context(), s, runtime.StartHooks{}); err == nil || !strings.Contains(err.Error(), "/none") {
		t.Errorf("Always did not pull the new image: %v", err)
	}
	for _, p := range []runtime.Pod{p, again} {
		if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
			t.Error(err)
		}
	}

	// An image that was removed from containerd by other means is pulled again.
	reg.push(t, "team/probe:v1", probe(t))
	s.Spec.ImagePullPolicy = corev1.PullIfNotPresent
	if err := r.client.ImageService().Delete(t.Context(), s.Spec.Image, images.SynchronousDelete()); err != nil {
		t.Fatal(err)
	}
	p, err = r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Error(err)
	}
}

// While a pod of a service runs, another one runs the same content, although the tag was pulled again for another
// service and stands for something else. After the service's sleep it is what the tag stands for.
func TestPodsOfAServiceRunTheSameContent(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	s := runtimetest.Service("same")
	s.Spec.Image, s.Spec.ImagePullPolicy = reg.push(t, "team/probe:v1", probe(t)), corev1.PullIfNotPresent
	first, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	newer, err := image.Build(image.Spec{Files: map[string]image.File{"/x": {}}, Entrypoint: []string{"/none"}})
	if err != nil {
		t.Fatal(err)
	}
	reg.push(t, "team/probe:v1", newer)
	other := runtimetest.Service("other")
	other.Spec.Image, other.Spec.ImagePullPolicy = s.Spec.Image, corev1.PullAlways
	if err := r.Prepare(t.Context(), other, nil); err != nil {
		t.Fatal(err)
	}
	second, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatalf("beside a running pod: %v", err)
	}
	runtimetest.Look(t, second)
	want, err := probe(t).Digest()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []runtime.Pod{first, second} {
		if p.ImageDigest != want.String() {
			t.Errorf("pod %s runs %q, want %s", p.ID, p.ImageDigest, want)
		}
		if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Start(t.Context(), s, runtime.StartHooks{}); err == nil || !strings.Contains(err.Error(), "/none") {
		t.Errorf("after its sleep it does not run what the tag stands for: %v", err)
	}
}

// A user builds an image again and loads it under the same name, with a client of his own, as wangell image load does.
// The service has a container of the former one ready, which keeps that in containerd.
func TestImageThatIsLoadedAgainIsUsed(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	s := runtimetest.Service("rebuilt")
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	awaitReady(t, r)
	newer, err := image.Build(image.Spec{Files: map[string]image.File{"/x": {}}, Entrypoint: []string{"/none"}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := connect(r.Address(), r.cfg.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := image.ImportImage(t.Context(), other, runtimetest.ProbeTag, newer); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		p, err := r.Start(t.Context(), s, runtime.StartHooks{})
		if err == nil {
			return fmt.Errorf("the former image runs: %w", r.Stop(t.Context(), p.ID, time.Second))
		}
		if !strings.Contains(err.Error(), "/none") {
			t.Fatal(err)
		}
		return nil
	})
}

func TestFailedPullSaysWhatToDo(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	good := reg.push(t, "team/probe:v1", probe(t))
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		image, want string
		before      func(http.ResponseWriter, *http.Request) bool
	}{
		{image: reg.host + "/team/none:v1", want: "not found in registry (pull 404): check spec.image"},
		{image: reg.host + "/team/probe:v2", want: "not found in registry (pull 404): check spec.image"},
		{image: nobody + "/x:v1", want: "does not answer"},
		{image: "Not An Image", want: "write [REGISTRY/]NAME[:TAG]"},
		{image: good, want: "refuses it (pull 401)", before: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}},
		{image: good, want: "answers 500", before: func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}},
	} {
		reg.before = c.before
		s := runtimetest.Service("bad")
		s.Spec.Image, s.Spec.ImagePullPolicy = c.image, ""
		err := r.Prepare(t.Context(), s, nil)
		if !errors.Is(err, runtime.ErrImage) {
			t.Errorf("%s: %v is not ErrImage", c.image, err)
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, fmt.Sprintf("service default/bad: image %q: ", c.image)) ||
			!strings.Contains(text, c.want) || strings.Contains(text, "\n") {
			t.Errorf("%s: got %q, want %q in it", c.image, text, c.want)
		}
		reg.before = nil
	}
	s := runtimetest.Service("good")
	s.Spec.Image, s.Spec.ImagePullPolicy = good, ""
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Errorf("after failures: %v", err)
	}
}

func TestCredentialsComeFromDockerLogin(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	ref := reg.push(t, "private/probe:v1", probe(t))
	reg.before = func(w http.ResponseWriter, req *http.Request) bool {
		if user, secret, _ := req.BasicAuth(); user == "me" && secret == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	config := fmt.Sprintf(`{"auths":{%q:{"username":"me","password":"secret"}}}`, reg.host)
	if err := os.WriteFile(dir+"/config.json", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := runtimetest.Service("private")
	s.Spec.Image, s.Spec.ImagePullPolicy = ref, ""
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Error(err)
	}
}

func TestPullReportsAFullDiskAndRecovers(t *testing.T) {
	cfg := unready(t)
	root := OwnRoot(cfg.StateDir)
	if err := os.MkdirAll(root, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=24m"); err != nil {
		need.Unmet(t, "cannot mount a small tmpfs: %v", err)
	}
	r := startWithProbe(t, cfg)
	reg := newRegistry(t)
	noise := make([]byte, 32<<20)
	_, _ = rand.Read(noise)
	big, err := image.Build(image.Spec{Files: map[string]image.File{"/noise": {Data: noise}},
		Entrypoint: []string{"/noise"}})
	if err != nil {
		t.Fatal(err)
	}
	s := runtimetest.Service("big")
	s.Spec.Image, s.Spec.ImagePullPolicy = reg.push(t, "big:v1", big), ""
	err = r.Prepare(t.Context(), s, nil)
	if !errors.Is(err, runtime.ErrImage) || !strings.Contains(err.Error(), "no space left on device") ||
		!strings.Contains(err.Error(), "default/big") {
		t.Fatalf("got %v", err)
	}
	// Images that were there still work.
	eventually(t, func() error {
		p, err := r.Start(t.Context(), runtimetest.Service("small"), runtime.StartHooks{})
		if err == nil {
			runtimetest.Look(t, p)
			err = r.Stop(t.Context(), p.ID, time.Second)
		}
		return err
	})
}

func TestInsecureRegistriesAreAccessedOverHTTP(t *testing.T) {
	insecure := []string{"10.46.0.0/16", "registry.lan", "other.lan:5000"}
	for host, want := range map[string]bool{
		"localhost:5000": true, "127.0.0.1:5000": true, "10.46.0.7:5000": true, "10.46.9.9": true, "10.47.0.7:5000": false,
		"registry.lan": true, "registry.lan:80": true, "other.lan:5000": true, "other.lan:5001": false, "docker.io": false,
	} {
		if got, err := PlainHTTP(insecure, host); err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", host, got, err, want)
		}
	}
}

// A service whose image is replaced by one that cannot be unpacked must go on with what it has.
func TestABrokenTarballMovesNoName(t *testing.T) {
	r := start(t, unready(t))
	saved := func(img v1.Image) *os.File {
		t.Helper()
		file := filepath.Join(t.TempDir(), "saved.tar")
		if err := image.WriteFile(file, "local/x:v1", img); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	good, err := image.Build(image.Spec{Files: map[string]image.File{"/a": {Data: []byte("good")}}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := image.Build(image.Spec{Files: map[string]image.File{"/a": {Data: []byte("other")}}})
	if err != nil {
		t.Fatal(err)
	}
	config, err := other.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.RootFS.DiffIDs = []v1.Hash{{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}}
	bad, err := mutate.ConfigFile(other, config)
	if err != nil {
		t.Fatal(err)
	}
	const full = "docker.io/local/x:v1"
	if names, err := r.LoadImages(t.Context(), saved(good)); err != nil || !slices.Equal(names, []string{full}) {
		t.Fatalf("loaded %q, %v; want %s", names, err, full)
	}
	before, err := r.Images(t.Context())
	if err != nil || len(before) != 1 || before[0].Name != full {
		t.Fatalf("images %+v, %v", before, err)
	}
	if names, err := r.LoadImages(t.Context(), saved(bad)); err == nil || len(names) > 0 {
		t.Errorf("a tarball that cannot be unpacked: %q, %v", names, err)
	}
	if after, err := r.Images(t.Context()); err != nil || !slices.Equal(after, before) {
		t.Errorf("images %+v, %v; want %+v", after, err, before)
	}
	if _, err := r.images.look(t.Context(), wish{name: full, snapshotter: r.cfg.snapshotter()}); err != nil {
		t.Errorf("the image is not there any more: %v", err)
	}
	// A name that leads to an image without its content, as after an interruption: the wake says so.
	ctx := t.Context()
	imported, err := r.client.Import(ctx, saved(other))
	if err != nil || len(imported) != 1 {
		t.Fatal(imported, err)
	}
	r.images.forget(full)
	manifest, err := images.Manifest(ctx, r.client.ContentStore(), imported[0].Target, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.ContentStore().Delete(ctx, manifest.Layers[0].Digest); err != nil {
		t.Fatal(err)
	}
	_, err = r.images.ensureImage(ctx, &v1alpha1.WangellService{}, "local/x:v1", false, corev1.PullNever, nil)
	if err == nil || !strings.Contains(err.Error(), "1 of its parts are missing on this machine") ||
		!strings.Contains(err.Error(), "wangell image load") {
		t.Errorf("without a layer: %v", err)
	}
}
