// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"crypto/rand"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/internal/node/cri"
)

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
