// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/faultyhub"
	"wangell.loutres.me/test/testutil/syncbuf"
)

func TestPullSaysNothingBesideItsError(t *testing.T) {
	r := start(t, unready(t))
	var said syncbuf.Buffer
	log.L.Logger.SetOutput(&said)
	t.Cleanup(func() { log.L.Logger.SetOutput(os.Stderr) })
	_, err := Pull(t.Context(), r.Client(), DefaultSnapshotter, "127.0.0.1:1/none:v1", nil, func(int64, int64) {})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1 does not answer") || said.String() != "" {
		t.Errorf("%v; log: %q", err, said.String())
	}
}

// faultySize is the size of a layer whose download is disturbed, in bytes.
const faultySize = 2 << 20

// prepareFaulty pulls an image for a service of its own.
func prepareFaulty(ctx context.Context, r *Runtime, ref string) error {
	s := runtimetest.Service("faulty")
	s.Spec.Image, s.Spec.ImagePullPolicy = ref, ""
	return r.Prepare(ctx, s, nil)
}

// partialDownloads returns the downloads of a blob that are not complete, with their offsets.
func partialDownloads(t *testing.T, r *Runtime, digest string) (offset int64, n int) {
	t.Helper()
	active, err := r.client.ContentStore().ListStatuses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range active {
		if strings.HasSuffix(s.Ref, digest) {
			offset, n = s.Offset, n+1
		}
	}
	return offset, n
}

// What goes wrong with downloads on one machine; internal/images/prefetch has the same through CRI.
func TestPullsSurviveAFaultyRegistry(t *testing.T) {
	r := start(t, unready(t))
	hub := faultyhub.New(t)

	t.Run("a download that is cut goes on", func(t *testing.T) {
		ref, layers := hub.Push(t, "cut:v1", faultyhub.Noise(t, faultySize))
		hub.Set(faultyhub.Fault{Cut: faultySize / 4})
		defer hub.Set(faultyhub.Fault{})
		tries := 1
		for ; ; tries++ {
			err := prepareFaulty(t.Context(), r, ref)
			if err == nil {
				break
			}
			if tries == 10 {
				t.Fatal(err)
			}
		}
		sent, requests := hub.Sent(layers[0])
		t.Logf("%d tries, %d requests, %d bytes sent of a layer of about %d", tries, requests, sent, faultySize)
		if requests < 4 || sent > faultySize*5/4 {
			t.Errorf("%d bytes in %d requests: downloads begin anew", sent, requests)
		}
	})

	t.Run("a layer that is not what its digest says is refused", func(t *testing.T) {
		ref, layers := hub.Push(t, "corrupt:v1", faultyhub.Noise(t, faultySize))
		hub.Set(faultyhub.Fault{Corrupt: true})
		err := prepareFaulty(t.Context(), r, ref)
		if !errors.Is(err, runtime.ErrImage) || !strings.Contains(err.Error(), "digest") {
			t.Errorf("got %v", err)
		}
		t.Log(err)
		if offset, n := partialDownloads(t, r, layers[0]); n > 0 {
			t.Errorf("%d bytes of it are kept", offset)
		}
		hub.Set(faultyhub.Fault{})
		if err := prepareFaulty(t.Context(), r, ref); err != nil {
			t.Error(err)
		}
	})

	t.Run("a token that expires is renewed", func(t *testing.T) {
		ref, _ := hub.Push(t, "token:v1", faultyhub.Noise(t, 1<<15))
		hub.Set(faultyhub.Fault{TokenFor: time.Second, Pause: 1200 * time.Millisecond})
		defer hub.Set(faultyhub.Fault{})
		before := hub.Issued()
		if err := prepareFaulty(t.Context(), r, ref); err != nil {
			t.Error(err)
		}
		if n := hub.Issued() - before; n < 2 {
			t.Errorf("%d tokens were issued", n)
		}
	})

	t.Run("a limit of the registry is waited for", func(t *testing.T) {
		ref, layers := hub.Push(t, "limited:v1", faultyhub.Noise(t, 1<<15))
		const pause = time.Second
		hub.Set(faultyhub.Fault{RetryAfter: int(pause.Seconds())})
		done, begin := make(chan error, 1), time.Now()
		go func() { done <- prepareFaulty(t.Context(), r, ref) }()
		eventually(t, func() error {
			if hub.Limited() == 0 {
				return errors.New("the registry has refused no request")
			}
			return nil
		})
		hub.Set(faultyhub.Fault{})
		if err := <-done; err != nil || time.Since(begin) < pause {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if _, requests := hub.Sent(layers[0]); requests != 1 {
			t.Errorf("the layer was fetched %d times", requests)
		}
	})

	t.Run("a slow registry is waited for", func(t *testing.T) {
		ref, _ := hub.Push(t, "slow:v1", faultyhub.Noise(t, faultySize/8))
		hub.Set(faultyhub.Fault{Pause: 200 * time.Millisecond})
		defer hub.Set(faultyhub.Fault{})
		var seen []string
		s := runtimetest.Service("slow")
		s.Spec.Image, s.Spec.ImagePullPolicy = ref, ""
		err := r.Prepare(t.Context(), s, func(_ string, done, total int64) {
			seen = append(seen, fmt.Sprintf("%d/%d", done, total))
		})
		if err != nil || len(seen) < 2 {
			t.Errorf("progress %v, %v", seen, err)
		}
	})

	t.Run("a layer in common is fetched once", func(t *testing.T) {
		common := faultyhub.Noise(t, faultySize)
		a, layersA := hub.Push(t, "team/a:v1", common, faultyhub.Noise(t, 1<<16))
		b, layersB := hub.Push(t, "team/b:v1", common, faultyhub.Noise(t, 1<<16))
		done := make(chan error, 2)
		for _, ref := range []string{a, b} {
			go func() { done <- prepareFaulty(t.Context(), r, ref) }()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for _, l := range append(layersA, layersB...) {
			if _, requests := hub.Sent(l); requests != 1 {
				t.Errorf("layer %s was fetched %d times", l, requests)
			}
		}
	})
}

// The next process goes on with what one has pulled that ended during the pull.
func TestTheNextProcessGoesOnWithAPull(t *testing.T) {
	cfg := unready(t)
	first, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "killed:v1", faultyhub.Noise(t, faultySize))
	hub.Set(faultyhub.Fault{Hold: make(chan struct{})})
	ended := make(chan error, 1)
	go func() { ended <- prepareFaulty(context.Background(), first, ref) }()
	eventually(t, func() error {
		if offset, _ := partialDownloads(t, first, layers[0]); offset < faultySize/4 {
			return fmt.Errorf("%d bytes are there", offset)
		}
		return nil
	})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Fatal("the pull ended with its process, and without an error")
	}
	hub.Set(faultyhub.Fault{})
	r := start(t, cfg)
	if err := prepareFaulty(t.Context(), r, ref); err != nil {
		t.Fatal(err)
	}
	sent, requests := hub.Sent(layers[0])
	t.Logf("%d bytes sent in %d requests for a layer of about %d", sent, requests, faultySize)
	if _, n := partialDownloads(t, r, layers[0]); n > 0 || sent > 2*faultySize {
		t.Errorf("%d partial downloads are left, %d bytes were sent", n, sent)
	}
}

// A registry that limits pulls gets the time that it asks for, and one that does not say how long is reported.
func TestAPullWaitsAsLongAsTheRegistryAsks(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	s := runtimetest.Service("limited")
	s.Spec.Image, s.Spec.ImagePullPolicy = reg.push(t, "team/probe:v1", probe(t)), ""
	header := ""
	var mu sync.Mutex
	var refused []time.Time
	reg.before = func(w http.ResponseWriter, _ *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if len(refused) == 2 && header != "" {
			return false
		}
		refused = append(refused, time.Now())
		if header != "" {
			w.Header().Set("Retry-After", header)
		}
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	err := r.Prepare(t.Context(), s, nil)
	const want = "answers 429 Too Many Requests: try again later"
	if !errors.Is(err, runtime.ErrImage) || !strings.Contains(err.Error(), want) {
		t.Errorf("without a time: %v", err)
	}
	mu.Lock()
	refused, header = nil, "1"
	mu.Unlock()
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Errorf("with a time: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(refused) != 2 || refused[1].Sub(refused[0]) < 900*time.Millisecond {
		t.Errorf("refused at %v", refused)
	}
}

// A tag that moves while it is being pulled gives one content, and not a mixture.
func TestATagThatMovesDuringAPullGivesOneContent(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	s := runtimetest.Service("moved")
	old := probe(t)
	s.Spec.Image, s.Spec.ImagePullPolicy = reg.push(t, "team/probe:v1", old), ""
	newer, err := image.Build(image.Spec{Files: map[string]image.File{"/x": {}}, Entrypoint: []string{"/none"}})
	if err != nil {
		t.Fatal(err)
	}
	var move sync.Once
	var pushing atomic.Bool
	reg.before = func(_ http.ResponseWriter, req *http.Request) bool {
		if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") && !pushing.Load() {
			move.Do(func() {
				pushing.Store(true)
				reg.push(t, "team/probe:v1", newer)
				pushing.Store(false)
			})
		}
		return false
	}
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	runtimetest.Look(t, p)
	if want, _ := old.Digest(); p.ImageDigest != want.String() {
		t.Errorf("runs %s, want %s", p.ImageDigest, want)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Error(err)
	}
}

func TestServicesWithOneImagePullItOnce(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	ref := reg.push(t, "team/probe:v1", probe(t))
	var all sync.WaitGroup
	for i := range 50 {
		s := runtimetest.Service(fmt.Sprintf("s%d", i))
		s.Spec.Image, s.Spec.ImagePullPolicy = ref, corev1.PullIfNotPresent
		all.Go(func() {
			if err := r.Prepare(t.Context(), s, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := reg.blobs.Load(); n != 2 { // a layer and a configuration
		t.Errorf("%d blobs were fetched for 50 services, want 2", n)
	}
}

// Without its registry, a service with the policy Always does not start, and says why; others start.
func TestPolicyAlwaysNeedsTheRegistry(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	s := runtimetest.Service("offline")
	s.Spec.Image, s.Spec.ImagePullPolicy = reg.push(t, "team/probe:v1", probe(t)), corev1.PullAlways
	if err := r.Prepare(t.Context(), s, nil); err != nil {
		t.Fatal(err)
	}
	reg.before = func(w http.ResponseWriter, _ *http.Request) bool {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return true
		}
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
		return true
	}
	if _, err := r.Start(t.Context(), s, runtime.StartHooks{}); !errors.Is(err, runtime.ErrImage) ||
		!strings.Contains(err.Error(), "does not answer") {
		t.Errorf("Always: %v", err)
	}
	s.Spec.ImagePullPolicy = corev1.PullIfNotPresent
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatalf("IfNotPresent: %v", err)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Error(err)
	}
}

// What daemons read of a pull that goes on in their node's containerd: half of the image's layer is there, and later
// all of it.
func TestProgressOfAPullIsReadFromContainerd(t *testing.T) {
	r := start(t, unready(t))
	reg := newRegistry(t)
	noise := make([]byte, 8<<20)
	_, _ = rand.Read(noise)
	img, err := image.Build(image.Spec{Files: map[string]image.File{"/noise": {Data: noise}},
		Entrypoint: []string{"/noise"}})
	if err != nil {
		t.Fatal(err)
	}
	ref := reg.push(t, "team/slow:v1", img)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layers[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	packed, err := layers[0].Compressed()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	free := sync.OnceFunc(func() { close(release) })
	reg.before = func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, digest.String()) {
			return false
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		w.(http.Flusher).Flush()
		<-release
		_, _ = w.Write(data[len(data)/2:])
		return true
	}
	images, err := cri.OpenImages("unix://" + OwnSocket(r.cfg.RunDir))
	if err != nil {
		t.Fatal(err)
	}
	defer images.Close()
	began := time.Now()
	if _, _, known := images.Progress(t.Context(), ref, began); known {
		t.Error("there is progress before the pull")
	}
	pulled := make(chan error, 1)
	go func() {
		_, err := r.Client().Pull(namespaces.WithNamespace(t.Context(), "k8s.io"), ref, client.WithResolver(
			docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
				docker.WithPlainHTTP(docker.MatchAllHosts))})))
		pulled <- err
	}()
	defer func() {
		free()
		if err := <-pulled; err != nil {
			t.Error(err)
		}
	}()
	until := func(what string, is func(done, total uint64) bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			done, total, known := images.Progress(t.Context(), ref, began)
			if known && total != uint64(len(data)) {
				t.Fatalf("%d of %d bytes, the layer has %d", done, total, len(data))
			}
			if known && is(done, total) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d of %d, known %t", what, done, total, known)
			}
		}
	}
	until("a part is there", func(done, total uint64) bool { return done > total/4 && done < total })
	free()
	until("all is there", func(done, total uint64) bool { return done == total })
}
