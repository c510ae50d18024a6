// SPDX-License-Identifier: Apache-2.0

// Package tarserve serves the image in a tarball as a registry on a loopback address would (OCI distribution-spec,
// pulling only), straight from the file.
package tarserve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// repository is the name of the only repository, and tag that of its tag.
const (
	repository = "tarball"
	tag        = "latest"
)

// Server serves one image.
type Server struct {
	archive *archive
	listen  net.Listener
	server  http.Server
	done    chan struct{}
}

// Start serves the image in a tarball, an OCI layout or in the format of docker save, until Close. It fails if the file
// is something else, is compressed as a whole, or holds several images.
func Start(file string) (*Server, error) {
	a, err := openArchive(file)
	if err != nil {
		return nil, fmt.Errorf("tarball %s: %w", file, err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.file.Close()
		return nil, fmt.Errorf("serve tarball %s: %w", file, err)
	}
	s := &Server{archive: a, listen: l, done: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v2/"+repository+"/manifests/{reference}", s.manifest)
	mux.HandleFunc("GET /v2/"+repository+"/blobs/{digest}", s.blob)
	s.server = http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(l) // ends with Close
	}()
	return s, nil
}

// Ref returns the reference of the image, to be pulled over plain HTTP.
func (s *Server) Ref() string { return s.listen.Addr().String() + "/" + repository + ":" + tag }

// Name returns the name of the image according to the tarball; empty: it has none.
func (s *Server) Name() string { return s.archive.name }

// Close ends the service and closes the tarball.
func (s *Server) Close() {
	s.server.Close()
	<-s.done
	s.archive.file.Close()
}

// manifest serves the image's manifest or index by the tag, and every manifest by its digest.
func (s *Server) manifest(w http.ResponseWriter, r *http.Request) {
	text, kind := s.archive.top, s.archive.topType
	reference := r.PathValue("reference")
	d, err := digest.Parse(reference)
	if err != nil && reference != tag {
		http.NotFound(w, r)
		return
	}
	if err == nil && d != digest.FromBytes(text) {
		m := s.archive.blobs[d]
		if m == nil {
			http.NotFound(w, r)
			return
		}
		if text, err = io.ReadAll(io.NewSectionReader(m, 0, m.Size())); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		kind = manifestType(text)
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", digest.FromBytes(text).String())
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
}

// manifestType returns the media type of a manifest or index.
func manifestType(text []byte) string {
	var m struct {
		MediaType string          `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
	}
	_ = json.Unmarshal(text, &m) // the client refuses what is not JSON
	switch {
	case m.MediaType != "":
		return m.MediaType
	case m.Manifests != nil:
		return ocispec.MediaTypeImageIndex
	}
	return ocispec.MediaTypeImageManifest
}

func (s *Server) blob(w http.ResponseWriter, r *http.Request) {
	m := s.archive.blobs[digest.Digest(r.PathValue("digest"))]
	if m == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(m, 0, m.Size()))
}
