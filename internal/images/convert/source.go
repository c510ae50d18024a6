// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/images/tarserve"
)

// isTarball reports whether an argument names a tarball and not a reference.
func isTarball(arg string) bool {
	if info, err := os.Stat(arg); err == nil && info.Mode().IsRegular() {
		return true
	}
	return strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") || strings.HasSuffix(arg, ".tar")
}

// parseReference parses a reference. Registries in insecure are used over plain HTTP.
func parseReference(text string, insecure []string) (name.Reference, error) {
	ref, err := name.ParseReference(text)
	if err != nil {
		return nil, fmt.Errorf("image %q: %w: write [REGISTRY/]NAME[:TAG], or the path of a tarball", text, err)
	}
	host := ref.Context().RegistryStr()
	bare, _, _ := strings.Cut(host, ":")
	if slices.Contains(insecure, host) || slices.Contains(insecure, bare) {
		return name.ParseReference(text, name.Insecure)
	}
	return ref, nil
}

// source is an image to read, in a registry.
type source struct {
	ref    name.Reference
	puller *remote.Puller
	server *tarserve.Server // of a tarball; nil otherwise

	mu     sync.Mutex
	client *http.Client
}

// openSource opens the image of a reference or tarball.
func openSource(arg string, insecure []string) (*source, error) {
	s := &source{}
	text := arg
	if isTarball(arg) {
		var err error
		if s.server, err = tarserve.Start(arg); err != nil {
			return nil, err
		}
		text = s.server.Ref()
	}
	var err error
	if s.ref, err = parseReference(text, insecure); err != nil {
		return nil, err
	}
	s.puller, err = remote.NewPuller(remote.WithAuthFromKeychain(authn.DefaultKeychain))
	return s, err
}

func (s *source) close() {
	if s.server != nil {
		s.server.Close()
	}
}

// top returns the image's manifest or index.
func (s *source) top(ctx context.Context) (*remote.Descriptor, error) {
	d, err := s.puller.Get(ctx, s.ref)
	return d, explain(s.ref.Context().RegistryStr(), err)
}

// manifest returns a manifest of the image's index.
func (s *source) manifest(ctx context.Context, d ocispec.Descriptor) (*remote.Descriptor, error) {
	m, err := s.puller.Get(ctx, s.ref.Context().Digest(d.Digest.String()))
	return m, explain(s.ref.Context().RegistryStr(), err)
}

// open reads a blob of the image. A broken download is resumed; a wrong digest is an error at the end.
func (s *source) open(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	client, err := s.authorized(ctx)
	if err != nil {
		return nil, explain(s.ref.Context().RegistryStr(), err)
	}
	return openBlob(ctx, client, s.ref.Context(), d), nil
}

func (s *source) authorized(ctx context.Context) (*http.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		client, err := pullClient(ctx, s.ref.Context())
		if err != nil {
			return nil, err
		}
		s.client = client
	}
	return s.client, nil
}

// pullClient returns an HTTP client that may read a repository, with the credentials of docker login.
func pullClient(ctx context.Context, repo name.Repository) (*http.Client, error) {
	auth, err := authn.DefaultKeychain.Resolve(repo.Registry)
	if err != nil {
		return nil, fmt.Errorf("credentials for %s: %w", repo.RegistryStr(), err)
	}
	t, err := transport.NewWithContext(ctx, repo.Registry, auth, remote.DefaultTransport,
		[]string{repo.Scope(transport.PullScope)})
	return &http.Client{Transport: t}, err
}

// openBlob reads a blob of a repository.
func openBlob(ctx context.Context, client *http.Client, repo name.Repository, d ocispec.Descriptor) io.ReadCloser {
	u := url.URL{
		Scheme: repo.Scheme(), Host: repo.RegistryStr(),
		Path: "/v2/" + repo.RepositoryStr() + "/blobs/" + d.Digest.String(),
	}
	return &blobReader{ctx: ctx, want: d, sum: digest.Canonical.Digester(),
		get: func(from int64) (*http.Response, error) {
			q, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
			if err != nil {
				return nil, err
			}
			if from > 0 {
				q.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, d.Size-1)) // some registries want the end
			}
			return client.Do(q)
		}}
}
