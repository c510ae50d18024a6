// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/images/lazy/trace"
	"wangell.loutres.me/internal/runtime/containerd"
	"wangell.loutres.me/test/testutil/e2e"
)

func TestImagesAreOptimisedByAProcess(t *testing.T) {
	program, err := e2e.Wangell(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("the digest is that of the result", func(t *testing.T) { testOptimised(t, program) })
	t.Run("the reason of a failure is known", func(t *testing.T) { testNotOptimised(t, program) })
}

func testOptimised(t *testing.T, program string) {
	hub := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer hub.Close()
	host := strings.TrimPrefix(hub.URL, "http://")
	img, err := image.Build(image.Spec{
		Files: map[string]image.File{"/a": {Data: []byte("first")}, "/b": {Data: []byte("later")}}, Cmd: []string{"none"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/model:plain")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	lazy, err := convert.Run(t.Context(), convert.Options{
		Source: ref.Name(), Destination: host + "/model:v1", Layers: convert.Layers{Mode: convert.Keep},
		Compression: convert.Compression{Format: convert.EStargz},
	})
	if err != nil {
		t.Fatal(err)
	}
	o := containerd.Optimisation{Source: host + "/model:v1", Destination: host + "/model:v1-optimised", Root: t.TempDir()}
	_, err = optimiseBy(t.Context(), program, o, nil)
	if err == nil || !strings.Contains(err.Error(), "has no recording") {
		t.Errorf("without a record: %v", err)
	}
	first := trace.Layer{Files: []string{"b"}}
	if err := first.Write(o.Root, lazy.Images[0].After[0].Digest); err != nil {
		t.Fatal(err)
	}
	got, err := optimiseBy(t.Context(), program, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	result, err := name.ParseReference(o.Destination)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := remote.Head(result); err != nil || d.Digest.String() != got.String() || got == lazy.Digest {
		t.Errorf("the answer is %s, the registry has %+v (%v), and the image was %s", got, d, err, lazy.Digest)
	}
}

// The process gives its reason when it fails, and ends when it is no longer wanted.
func testNotOptimised(t *testing.T, program string) {
	asked := make(chan struct{}, 100)
	silent := false
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		if silent {
			<-r.Context().Done()
		}
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer hub.Close()
	host := strings.TrimPrefix(hub.URL, "http://")
	o := containerd.Optimisation{Source: host + "/model:v1", Destination: host + "/model:v1-optimised", Root: t.TempDir()}
	_, err := optimiseBy(t.Context(), program, o, nil)
	if err == nil || !strings.Contains(err.Error(), "registry "+host) || strings.Contains(err.Error(), "exit status") {
		t.Errorf("refused: %v", err)
	}
	silent = true
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	for len(asked) > 0 {
		<-asked
	}
	go func() {
		_, err := optimiseBy(ctx, program, o, nil)
		ended <- err
	}()
	<-asked
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left, err := os.ReadDir(o.Root); err != nil || len(left) > 0 {
		t.Errorf("left in the snapshotter's folder: %v, %v", left, err)
	}
}
