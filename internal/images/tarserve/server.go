// SPDX-License-Identifier: Apache-2.0

// Package tarserve serves the image in a tarball as a registry on a loopback address would (OCI distribution-spec,
// pulling only), straight from the file.
package tarserve

import (
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/base/ownhost"
	"wangell.loutres.me/internal/images/readapi"
)

// repository and tag are the names of the only repository and its only tag.
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
	s.server = http.Server{Handler: ownhost.Guard(readapi.Handler(a)), ReadHeaderTimeout: time.Minute}
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

// Manifest implements readapi.Content: the image's manifest or index by the tag, and every manifest by its digest.
func (a *archive) Manifest(_ *http.Request, name, reference string) ([]byte, error) {
	d, err := digest.Parse(reference)
	switch {
	case name != repository || err != nil && reference != tag:
		return nil, fs.ErrNotExist
	case err != nil || d == digest.FromBytes(a.top):
		return a.top, nil
	case a.blobs[d] == nil:
		return nil, fs.ErrNotExist
	}
	return io.ReadAll(io.NewSectionReader(a.blobs[d], 0, a.blobs[d].Size()))
}

// Blob implements readapi.Content.
func (a *archive) Blob(_ *http.Request, name string, d digest.Digest) (io.ReadSeekCloser, error) {
	m := a.blobs[d]
	if m == nil || name != repository {
		return nil, fs.ErrNotExist
	}
	return section{io.NewSectionReader(m, 0, m.Size())}, nil
}

// section is a part of the tarball, which stays open.
type section struct{ *io.SectionReader }

// Close implements io.Closer.
func (section) Close() error { return nil }
