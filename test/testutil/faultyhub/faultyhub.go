// SPDX-License-Identifier: Apache-2.0

// Package faultyhub is a registry for tests of pulls: it serves images over HTTP, counts the bytes sent of each blob,
// and can cut, corrupt, slow down or refuse downloads.
package faultyhub

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"wangell.loutres.me/internal/images/image"
)

// Hub is a registry.
type Hub struct {
	// Host is the registry in the names of images.
	Host string

	server *httptest.Server
	inner  http.Handler
	mu     sync.Mutex // guards what follows
	blobs  map[string][]byte
	sent   map[string]int64
	asked  map[string]int
	fault  Fault
	until  []time.Time // the ends of the tokens that were issued
	// limited is the number of requests that were answered with 429.
	limited int
}

// Fault describes what goes wrong with the downloads of a layer.
type Fault struct {
	// Cut ends the connection after so many bytes of a response; 0 never.
	Cut int64
	// Corrupt changes a byte of each response.
	Corrupt bool
	// Hold blocks a response after its first half until it is closed, or the client hangs up.
	Hold chan struct{}
	// Pause is waited for before each 64 KiB, and before each manifest and configuration.
	Pause time.Duration
	// TokenFor is how long a token is valid, which is less than the client is told; 0: no token is needed.
	TokenFor time.Duration
	// RetryAfter answers requests for layers with 429 and this Retry-After, in seconds; 0: never.
	RetryAfter int
	// Private refuses all requests, as of clients that have no credentials.
	Private bool
}

// New starts a registry on 127.0.0.1, which ends with the test.
func New(t testing.TB) *Hub {
	t.Helper()
	h := &Hub{
		inner: registry.New(registry.Logger(log.New(io.Discard, "", 0))),
		blobs: map[string][]byte{}, sent: map[string]int64{}, asked: map[string]int{},
	}
	h.server = httptest.NewServer(h)
	t.Cleanup(h.server.Close)
	h.Host = strings.TrimPrefix(h.server.URL, "http://")
	return h
}

// Close ends the registry.
func (h *Hub) Close() { h.server.Close() }

// Set replaces what goes wrong from now on.
func (h *Hub) Set(f Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = f
}

// Sent returns how many bytes of a blob were sent, and to how many requests.
func (h *Hub) Sent(digest string) (bytes int64, requests int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sent[digest], h.asked[digest]
}

// Issued returns how many tokens were issued.
func (h *Hub) Issued() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.until)
}

// Limited returns how many requests were answered with 429.
func (h *Hub) Limited() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.limited
}

// Noise returns a layer with a file of n random bytes.
func Noise(t testing.TB, n int) v1.Layer {
	t.Helper()
	data := make([]byte, n)
	_, _ = rand.Read(data)
	img, err := image.Build(image.Spec{
		Files: map[string]image.File{fmt.Sprintf("/noise-%x", data[:4]): {Data: data}}, Entrypoint: []string{"/none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	return layers[0]
}

// Push pushes an image of layers under a path and tag, and returns its name and the digests of its layers.
func (h *Hub) Push(t testing.TB, tag string, layers ...v1.Layer) (ref string, digests []string) {
	t.Helper()
	return h.PushConfig(t, tag, func(*v1.Config) {}, layers...)
}

// PushConfig is Push for an image whose configuration change has changed.
func (h *Hub) PushConfig(t testing.TB, tag string, change func(*v1.Config), layers ...v1.Layer) (ref string,
	digests []string) {
	t.Helper()
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), layers...)
	if err == nil {
		c := config(t, img)
		change(&c.Config)
		img, err = mutate.ConfigFile(img, c)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			t.Fatal(err)
		}
		packed, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(packed)
		if err != nil {
			t.Fatal(err)
		}
		h.mu.Lock()
		h.blobs[digest.String()] = data
		h.mu.Unlock()
		digests = append(digests, digest.String())
	}
	to, err := name.NewTag(h.Host + "/" + tag)
	if err == nil {
		err = remote.Write(to, img)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to.String(), digests
}

// Digest returns the digest of the manifest of an image.
func (h *Hub) Digest(t testing.TB, ref string) string {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	head, err := remote.Head(tag)
	if err != nil {
		t.Fatal(err)
	}
	return head.Digest.String()
}

// config is the configuration of an image of this machine's platform.
func config(t testing.TB, img v1.Image) *v1.ConfigFile {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture, c.Config.Entrypoint = "linux", runtime.GOARCH, []string{"/none"}
	return c
}

// ServeHTTP implements http.Handler.
func (h *Hub) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/token" {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.until = append(h.until, time.Now().Add(h.fault.TokenFor))
		fmt.Fprintf(w, `{"token":"t%d","expires_in":60}`, len(h.until)-1)
		return
	}
	_, digest, _ := strings.Cut(req.URL.Path, "/blobs/")
	h.mu.Lock()
	f, data := h.fault, h.blobs[digest]
	if given := req.Header.Get("Authorization"); f.TokenFor > 0 && !h.valid(given) {
		h.mu.Unlock()
		challenge := fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, h.Host)
		if given != "" {
			challenge += `,error="invalid_token"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	if f.Private {
		h.mu.Unlock()
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	limited := data != nil && f.RetryAfter > 0
	switch {
	case limited:
		h.limited++
	case req.Method == http.MethodGet && data != nil:
		h.asked[digest]++
	}
	h.mu.Unlock()
	if limited {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if req.Method != http.MethodGet || data == nil {
		if req.Method == http.MethodGet {
			time.Sleep(f.Pause)
		}
		h.inner.ServeHTTP(w, req)
		return
	}
	if f.Corrupt {
		data = bytes.Clone(data)
		data[len(data)/2] ^= 0xff
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(&faulty{ResponseWriter: w, hub: h, digest: digest, fault: f, size: int64(len(data)),
		gone: req.Context().Done()}, req, "", time.Time{}, bytes.NewReader(data))
}

// valid reports whether a token is good. h.mu is held.
func (h *Hub) valid(authorization string) bool {
	var n int
	_, err := fmt.Sscanf(authorization, "Bearer t%d", &n)
	return err == nil && n < len(h.until) && time.Now().Before(h.until[n])
}

// faulty is the response with a blob.
type faulty struct {
	http.ResponseWriter
	hub    *Hub
	digest string
	fault  Fault
	size   int64
	wrote  int64
	gone   <-chan struct{} // closed when the client has hung up
}

// chunk is how many bytes are written at once.
const chunk = 64 << 10

// Write implements io.Writer.
func (w *faulty) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		if w.fault.Cut > 0 && w.wrote >= w.fault.Cut {
			panic(http.ErrAbortHandler)
		}
		if w.fault.Hold != nil && w.wrote >= w.size/2 {
			w.ResponseWriter.(http.Flusher).Flush()
			select {
			case <-w.fault.Hold:
			case <-w.gone:
				panic(http.ErrAbortHandler)
			}
		}
		time.Sleep(w.fault.Pause)
		var m int
		m, err = w.ResponseWriter.Write(b[:min(len(b), chunk)])
		w.wrote += int64(m)
		w.hub.mu.Lock()
		w.hub.sent[w.digest] += int64(m)
		w.hub.mu.Unlock()
		if w.fault.Cut > 0 && w.wrote >= w.fault.Cut {
			w.ResponseWriter.(http.Flusher).Flush()
		}
		b, n = b[m:], n+m
	}
	return n, err
}
