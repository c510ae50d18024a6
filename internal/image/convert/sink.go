// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/atomicfile"
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

// tarSink is a tarball: an OCI layout, which is also in the format of docker save if it holds a single image.
type tarSink struct {
	file string
	tag  string // of the image; may be empty
	work *work

	mu    sync.Mutex
	blobs map[digest.Digest]ocispec.Descriptor
}

func openTarball(file, tag string, w *work) (*tarSink, error) {
	if tag != "" {
		ref, err := name.NewTag(tag)
		if err != nil {
			return nil, fmt.Errorf("image name %q: %w", tag, err)
		}
		tag = ref.Name()
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil {
		return nil, fmt.Errorf("tarball %s: %w", file, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("tarball %s: %s is not a folder", file, filepath.Dir(file))
	}
	return &tarSink{file: file, tag: tag, work: w, blobs: map[digest.Digest]ocispec.Descriptor{}}, nil
}

func (*tarSink) writable(context.Context) error { return nil }

func (s *tarSink) has(_ context.Context, d ocispec.Descriptor) (bool, error) {
	if !s.work.hasBlob(d.Digest, d.Size) {
		return false, nil
	}
	s.list(d)
	return true, nil
}

func (s *tarSink) list(d ocispec.Descriptor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[d.Digest] = d
}

func (s *tarSink) put(_ context.Context, d ocispec.Descriptor) error {
	s.list(d)
	return nil
}

func (s *tarSink) copy(ctx context.Context, from *source, d ocispec.Descriptor) error {
	if err := download(ctx, from, d, s.work.path(workSpool), s.work.blob(d.Digest)); err != nil {
		return err
	}
	return s.put(ctx, d)
}

// download writes a blob of the source to a file, which does not exist before it is whole.
func download(ctx context.Context, from *source, d ocispec.Descriptor, spool, file string) error {
	in, err := from.open(ctx, d)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(spool, "download-")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if e := out.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(out.Name(), file)
	}
	if err != nil {
		_ = os.Remove(out.Name())
	}
	return err
}

func (s *tarSink) manifest(_ context.Context, d ocispec.Descriptor, text []byte) error {
	s.list(d)
	return os.WriteFile(s.work.blob(d.Digest), text, 0o600)
}

func (s *tarSink) open(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	return os.Open(s.work.blob(d.Digest))
}

func (s *tarSink) publish(ctx context.Context, d ocispec.Descriptor, text []byte) (err error) {
	if err := s.manifest(ctx, d, text); err != nil {
		return err
	}
	small, err := s.documents(d, text)
	if err != nil {
		return err
	}
	err = atomicfile.Into(s.file, 0o644, func(w io.Writer) error { return s.write(ctx, w, small) })
	if err != nil {
		return fmt.Errorf("write tarball %s: %w", s.file, err)
	}
	for _, b := range s.blobs {
		if err := s.work.forget(b.Digest); err != nil {
			return err
		}
	}
	return nil
}

// documents returns the files that describe the tarball.
func (s *tarSink) documents(d ocispec.Descriptor, text []byte) (map[string][]byte, error) {
	if s.tag != "" {
		tag, err := name.NewTag(s.tag)
		if err != nil {
			return nil, err
		}
		d.Annotations = map[string]string{
			ocispec.AnnotationRefName: tag.TagStr(), "io.containerd.image.name": tag.Name(),
		}
	}
	files := map[string]any{
		ocispec.ImageLayoutFile: ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion},
		ocispec.ImageIndexFile: ocispec.Index{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
			Manifests: []ocispec.Descriptor{d},
		},
	}
	if !isIndex(d.MediaType) {
		var m ocispec.Manifest
		if err := json.Unmarshal(text, &m); err != nil {
			return nil, err
		}
		saved := struct {
			Config   string
			RepoTags []string
			Layers   []string
		}{Config: blobName(m.Config.Digest)}
		if s.tag != "" {
			saved.RepoTags = []string{s.tag}
		}
		for _, l := range m.Layers {
			saved.Layers = append(saved.Layers, blobName(l.Digest))
		}
		files["manifest.json"] = []any{saved}
	}
	small := map[string][]byte{}
	for name, v := range files {
		text, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		small[name] = text
	}
	return small, nil
}

func blobName(d digest.Digest) string {
	return path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())
}

// write writes the tarball, sorted and with constant times.
func (s *tarSink) write(ctx context.Context, out io.Writer, small map[string][]byte) error {
	w := tar.NewWriter(out)
	add := func(name string, size int64, content io.Reader) error {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err := io.Copy(w, content)
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(small)) {
		if err := add(name, int64(len(small[name])), bytes.NewReader(small[name])); err != nil {
			return err
		}
	}
	for _, b := range slices.SortedFunc(maps.Values(s.blobs), func(a, b ocispec.Descriptor) int {
		return cmp.Compare(a.Digest, b.Digest)
	}) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f, err := os.Open(s.work.blob(b.Digest))
		if err != nil {
			return err
		}
		err = add(blobName(b.Digest), b.Size, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return w.Close()
}
