// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// sink receives an image. Nothing has the image's name before publish.
type sink interface {
	// writable returns an error if it is already clear that delivery would fail.
	writable(ctx context.Context) error
	// has reports whether a blob is there.
	has(ctx context.Context, d ocispec.Descriptor) (bool, error)
	// put delivers a blob of the work folder.
	put(ctx context.Context, d ocispec.Descriptor) error
	// copy delivers a blob of the source as it is.
	copy(ctx context.Context, from *source, d ocispec.Descriptor) error
	// manifest delivers a manifest that an index refers to.
	manifest(ctx context.Context, d ocispec.Descriptor, text []byte) error
	// open reads a blob that was delivered.
	open(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error)
	// publish delivers the image's manifest or index, and gives it the image's name.
	publish(ctx context.Context, d ocispec.Descriptor, text []byte) error
}

// registrySink is a repository of a registry.
type registrySink struct {
	ref    name.Reference
	work   *work
	puller *remote.Puller
	pusher *remote.Pusher

	mu     sync.Mutex
	client *http.Client
}

// retried are the answers after which an upload is repeated.
var retried = []int{
	http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

func openRegistry(text string, insecure []string, w *work) (*registrySink, error) {
	ref, err := parseReference(text, insecure)
	if err != nil {
		return nil, err
	}
	if _, ok := ref.(name.Digest); ok {
		return nil, fmt.Errorf("image %q: the digest of the result is not known beforehand: name a tag", text)
	}
	options := []remote.Option{remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithRetryStatusCodes(retried...)}
	s := &registrySink{ref: ref, work: w}
	if s.puller, err = remote.NewPuller(options...); err != nil {
		return nil, err
	}
	s.pusher, err = remote.NewPusher(options...)
	return s, err
}

// writable returns an error if the repository does not accept pushes, to fail before the work.
func (s *registrySink) writable(ctx context.Context) error {
	checked := make(chan error, 1)
	go func() { checked <- remote.CheckPushPermission(s.ref, authn.DefaultKeychain, remote.DefaultTransport) }()
	var err error
	select {
	case err = <-checked:
	case <-ctx.Done():
		return ctx.Err()
	}
	var t *transport.Error
	if errors.As(err, &t) {
		switch t.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed, http.StatusNotFound:
			registry := s.ref.Context().RegistryStr()
			return fmt.Errorf("registry %s takes no images for %s: log in as somebody who may push (docker login %s), or name "+
				"another registry: %w", registry, s.ref.Context().RepositoryStr(), registry, err)
		}
	}
	return nil // the upload will report what is wrong
}

func (s *registrySink) explain(err error) error { return explain(s.ref.Context().RegistryStr(), err) }

func (s *registrySink) has(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	l, err := s.puller.Layer(ctx, s.ref.Context().Digest(d.Digest.String()))
	if err != nil {
		return false, nil // the upload will report what is wrong
	}
	ok, err := partial.Exists(l)
	return ok && err == nil, nil
}

func (s *registrySink) put(ctx context.Context, d ocispec.Descriptor) error {
	if err := s.upload(ctx, fileBlob{d, s.work.blob(d.Digest)}); err != nil {
		return err
	}
	return s.work.forget(d.Digest)
}

func (s *registrySink) upload(ctx context.Context, l v1.Layer) error {
	return s.explain(s.pusher.Upload(ctx, s.ref.Context(), l))
}

func (s *registrySink) copy(ctx context.Context, from *source, d ocispec.Descriptor) error {
	l, err := from.puller.Layer(ctx, from.ref.Context().Digest(d.Digest.String()))
	if err != nil {
		return err
	}
	return s.upload(ctx, l)
}

// document is a manifest or index.
type document struct {
	text      []byte
	mediaType string
}

// RawManifest implements remote.Taggable.
func (d document) RawManifest() ([]byte, error) { return d.text, nil }

// MediaType is what remote looks for.
func (d document) MediaType() (types.MediaType, error) { return types.MediaType(d.mediaType), nil }

func (s *registrySink) manifest(ctx context.Context, d ocispec.Descriptor, text []byte) error {
	ref := s.ref.Context().Digest(d.Digest.String())
	return s.explain(s.pusher.Put(ctx, ref, document{text, d.MediaType}))
}

func (s *registrySink) open(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		client, err := pullClient(ctx, s.ref.Context())
		if err != nil {
			return nil, s.explain(err)
		}
		s.client = client
	}
	return openBlob(ctx, s.client, s.ref.Context(), d), nil
}

func (s *registrySink) publish(ctx context.Context, d ocispec.Descriptor, text []byte) error {
	return s.explain(s.pusher.Put(ctx, s.ref, document{text, d.MediaType}))
}

// fileBlob is a blob in a file, for uploads.
type fileBlob struct {
	d    ocispec.Descriptor
	file string
}

// Digest implements v1.Layer.
func (b fileBlob) Digest() (v1.Hash, error) { return v1.NewHash(b.d.Digest.String()) }

// DiffID implements v1.Layer. Uploads do not ask for it.
func (b fileBlob) DiffID() (v1.Hash, error) { return b.Digest() }

// Size implements v1.Layer.
func (b fileBlob) Size() (int64, error) { return b.d.Size, nil }

// MediaType implements v1.Layer.
func (b fileBlob) MediaType() (types.MediaType, error) { return types.MediaType(b.d.MediaType), nil }

// Compressed implements v1.Layer.
func (b fileBlob) Compressed() (io.ReadCloser, error) { return os.Open(b.file) }

// Uncompressed implements v1.Layer. Uploads do not ask for it.
func (b fileBlob) Uncompressed() (io.ReadCloser, error) { return b.Compressed() }
