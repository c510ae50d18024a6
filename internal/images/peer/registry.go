// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/silence"
	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/images/registryhosts"
)

const (
	// registryPause is how long a registry is not asked after a failure, unless it asks for another pause, up to
	// maxPause.
	registryPause = 5 * time.Second
	maxPause      = time.Minute
	// stallTimeout is how long a response may send nothing.
	stallTimeout = 5 * time.Second
)

// errStatus is an unexpected response of a registry or peer.
var errStatus = errors.New("unexpected answer")

// errBusy is returned by a peer that serves as many others as it can, or by a busy registry.
var errBusy = errors.New("is busy")

// registries are the registries that containerd would ask, with containerd's settings, without credentials.
type registries struct {
	hosts *registryhosts.Cache

	mu    sync.Mutex
	until map[string]pause // by repository
}

// pause is a time during which a repository is not requested.
type pause struct {
	end   time.Time
	asked bool // the registry has asked for it
}

// newRegistries returns the registries as the settings in a folder say. self is the mirror's own address, which is in
// them.
func newRegistries(folder, self string) registries {
	look := func(registry string) ([]docker.RegistryHost, error) {
		ctx := silence.In(context.Background()) // it logs what its caller gets as an error
		list, err := config.ConfigureHosts(ctx, config.HostOptions{HostDir: config.HostDirFromRoot(folder)})(registry)
		if err != nil {
			return nil, fmt.Errorf("settings of registry %s in %s: %w", registry, folder, err)
		}
		return slices.DeleteFunc(list, func(h docker.RegistryHost) bool {
			return h.Host == self || !h.Capabilities.Has(docker.HostCapabilityPull)
		}), nil
	}
	return registries{hosts: registryhosts.New(look)}
}

// down reports whether a repository is not requested now, because its registry has failed.
func (r *registries) down(repository string, now time.Time) bool {
	is, _ := r.state(repository, now)
	return is
}

// state reports whether a repository is not requested now, and whether the registry has asked for that.
func (r *registries) state(repository string, now time.Time) (down, asked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.until[repository]
	return now.Before(p.end), p.asked
}

// failed records that a request for a repository has failed.
func (r *registries) failed(repository string, err error, now time.Time) {
	length := registryPause
	var limited *limitedError
	asked := errors.As(err, &limited)
	if asked {
		length = limited.after
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[string]pause{}
	}
	for k, p := range r.until {
		if now.After(p.end) {
			delete(r.until, k)
		}
	}
	r.until[repository] = pause{now.Add(length), asked}
}

// limitedError is the error of a registry that has asked for a pause.
type limitedError struct{ after time.Duration }

// Error implements error.
func (e *limitedError) Error() string { return fmt.Sprintf("asks for a pause of %v", e.after) }

// manifest returns a manifest or index, which has its digest.
func (r *registries) manifest(ctx context.Context, k blobindex.Key) ([]byte, error) {
	body, err := r.open(ctx, k, true, 0, 0)
	if err != nil {
		return nil, err
	}
	return readManifest(body, k)
}

// readManifest reads a manifest or index, closes the body, and returns the content if it has the digest.
func readManifest(body io.ReadCloser, k blobindex.Key) ([]byte, error) {
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, maxManifest+1))
	switch {
	case err != nil:
		return nil, err
	case digest.FromBytes(text) != digestOf(k):
		return nil, fmt.Errorf("manifest %s: the registry sent something else", digestOf(k))
	}
	return text, nil
}

// has returns nil if the registry gives a manifest or index to everybody. It does not get it, which registries with
// limits would count.
func (r *registries) has(ctx context.Context, k blobindex.Key) error {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	body, err := r.ask(ctx, k, query{method: http.MethodHead, kind: kindOf(true)})
	if err != nil {
		return err
	}
	return body.Close()
}

// open returns length bytes of a blob or manifest from an offset on, or all of it if length is 0.
func (r *registries) open(
	ctx context.Context, k blobindex.Key, manifest bool, offset, length uint64,
) (io.ReadCloser, error) {
	return r.ask(ctx, k, query{method: http.MethodGet, kind: kindOf(manifest), offset: offset, length: length})
}

// ask completes a query and sends it to the hosts of a registry until one has what it asks for.
func (r *registries) ask(ctx context.Context, k blobindex.Key, q query) (io.ReadCloser, error) {
	registry, name, _ := strings.Cut(k.Repository, "/")
	hosts, err := r.hosts.Hosts(registry)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("no registry to ask for %s", k.Repository)
	ctx = docker.WithScope(ctx, "repository:"+name+":pull")
	for i := range hosts {
		q.host, q.registry, q.name, q.digest = &hosts[i], registry, name, digestOf(k)
		var body io.ReadCloser
		if body, err = q.do(ctx); err == nil {
			return body, nil
		}
	}
	return nil, err
}

// query is a request to one host.
type query struct {
	host                 *docker.RegistryHost
	method               string
	registry, name, kind string
	digest               digest.Digest
	offset, length       uint64
}

// do sends the request, and repeats it with authorization if the host requires it.
func (q *query) do(ctx context.Context) (io.ReadCloser, error) {
	at := url.URL{
		Scheme: q.host.Scheme, Host: q.host.Host,
		Path: strings.Join([]string{q.host.Path, q.name, q.kind, string(q.digest)}, "/"),
	}
	if q.host.Host != q.registry {
		at.RawQuery = url.Values{"ns": {q.registry}}.Encode() // it may be a mirror of several
	}
	var answers []*http.Response
	for {
		req, err := http.NewRequestWithContext(ctx, q.method, at.String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header = q.host.Header.Clone()
		if req.Header == nil {
			req.Header = http.Header{}
		}
		if q.kind == "manifests" {
			req.Header["Accept"] = []string{
				ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex, images.MediaTypeDockerSchema2Manifest,
				images.MediaTypeDockerSchema2ManifestList,
			}
		}
		if q.length > 0 {
			req.Header.Set("Range", byteRange(q.offset, q.length))
		}
		if q.host.Authorizer != nil {
			if err := q.host.Authorizer.Authorize(ctx, req); err != nil {
				return nil, fmt.Errorf("%s: %w", q.host.Host, err)
			}
		}
		res, err := q.host.Client.Do(req)
		if err != nil {
			return nil, err
		}
		body, err := rangeOf(res, q.offset, q.length)
		if err == nil {
			return body, nil
		}
		if answers = append(answers, res); res.StatusCode != http.StatusUnauthorized || len(answers) > 2 ||
			q.host.Authorizer == nil || q.host.Authorizer.AddResponses(ctx, answers) != nil {
			return nil, fmt.Errorf("%s: %w", q.host.Host, err)
		}
	}
}

// kindOf is where a registry serves something.
func kindOf(manifest bool) string {
	if manifest {
		return "manifests"
	}
	return "blobs"
}

// byteRange is the value of a Range header.
func byteRange(offset, length uint64) string {
	return fmt.Sprintf("bytes=%d-%d", offset, offset+length-1)
}

// rangeOf returns the body of a response if it has the requested range, or the whole blob of length bytes; length 0
// accepts any. Otherwise it closes the body.
func rangeOf(res *http.Response, offset, length uint64) (io.ReadCloser, error) {
	whole := res.StatusCode == http.StatusOK && offset == 0 && (length == 0 || res.ContentLength == int64(length))
	part := false
	if res.StatusCode == http.StatusPartialContent {
		var first, last uint64
		n, _ := fmt.Sscanf(res.Header.Get("Content-Range"), "bytes %d-%d/", &first, &last)
		part = n == 2 && first == offset && last == offset+length-1
	}
	if whole || part {
		return res.Body, nil
	}
	res.Body.Close()
	after, asked := backoff.RetryAfter(res, time.Now())
	if !asked && res.StatusCode == http.StatusTooManyRequests {
		after = registryPause
	}
	if after > 0 {
		return nil, &limitedError{min(after, maxPause)}
	}
	if res.StatusCode == http.StatusServiceUnavailable {
		return nil, errBusy
	}
	return nil, fmt.Errorf("%w: %s", errStatus, res.Status)
}

// maxManifest bounds the size in bytes of manifests. Registries refuse larger ones.
const maxManifest = 4 << 20

const (
	// headerTimeout bounds the time for a TLS handshake and a request's header, and idleTimeout that between requests.
	headerTimeout = 5 * time.Second
	idleTimeout   = 30 * time.Second
	// maxConns bounds the connections of peers.
	maxConns = 256
)
