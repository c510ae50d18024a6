// SPDX-License-Identifier: Apache-2.0

// Package readapi serves pulls as a registry does (OCI distribution-spec, "Pull").
package readapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Content is the source of manifests and blobs. An error of its methods that wraps fs.ErrNotExist becomes a 404;
// other errors become a 500.
type Content interface {
	// Manifest returns a manifest or index of a repository by a tag or digest.
	Manifest(r *http.Request, repository, reference string) ([]byte, error)
	// Blob returns a blob of a repository, which the caller closes.
	Blob(r *http.Request, repository string, d digest.Digest) (io.ReadSeekCloser, error)
}

// PartsHeader is the header of a client that reads parts of blobs and verifies them by itself: it wants its range
// without waiting for more of the blob. The value selects the sources: PartsHere or PartsAnywhere. With HEAD it wants
// the size of the blob.
const (
	PartsHeader   = "Wangell-Parts"
	PartsHere     = "here"     // if it is on this node already
	PartsAnywhere = "anywhere" // also from other nodes
)

// SourceHeader is the header of the response to such a client, with the source of the range: SourceNode, this node,
// or SourcePeer, another one. The bytes have not been verified.
const (
	SourceHeader = "Wangell-Source"
	SourceNode   = "node"
	SourcePeer   = "peer"
)

// Part is implemented by blobs of Content that have a source for SourceHeader.
type Part interface {
	Source() string
}

// Handler serves content.
func Handler(content Content) http.Handler {
	h := handler{content}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v2/{path...}", h.route)
	return mux
}

type handler struct{ content Content }

// route finds the end of the repository's name, which may have slashes.
func (h handler) route(w http.ResponseWriter, r *http.Request) {
	dir, last := path.Split(r.PathValue("path"))
	dir = strings.TrimSuffix(dir, "/")
	if name, ok := strings.CutSuffix(dir, "/manifests"); ok && name != "" {
		h.manifest(w, r, name, last)
	} else if name, ok := strings.CutSuffix(dir, "/blobs"); ok && name != "" {
		h.blob(w, r, name, last)
	} else {
		http.NotFound(w, r)
	}
}

func (h handler) manifest(w http.ResponseWriter, r *http.Request, repository, reference string) {
	text, err := h.content.Manifest(r, repository, reference)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", MediaType(text))
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(text).String())
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}

func (h handler) blob(w http.ResponseWriter, r *http.Request, repository, reference string) {
	d, err := digest.Parse(reference)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	b, err := h.content.Blob(r, repository, d)
	if err != nil {
		fail(w, err)
		return
	}
	defer b.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Docker-Content-Digest", d.String())
	if p, ok := b.(Part); ok {
		w.Header().Set(SourceHeader, p.Source())
	}
	http.ServeContent(w, r, "", time.Time{}, b)
}

func fail(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	if errors.Is(err, fs.ErrNotExist) {
		status = http.StatusNotFound
	}
	http.Error(w, err.Error(), status)
}

// MediaType returns the media type of a manifest or index. Anything else gets the type of a manifest, which its reader
// then refuses.
func MediaType(text []byte) string {
	var m struct {
		MediaType string          `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
	}
	_ = json.Unmarshal(text, &m)
	switch {
	case m.MediaType != "":
		return m.MediaType
	case m.Manifests != nil:
		return ocispec.MediaTypeImageIndex
	}
	return ocispec.MediaTypeImageManifest
}
