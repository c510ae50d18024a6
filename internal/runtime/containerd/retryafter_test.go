// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

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
