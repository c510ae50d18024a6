// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/images/readapi"
	"wangell.loutres.me/internal/wire"
)

const (
	// askTimeout bounds how long the index is waited for.
	askTimeout = 300 * time.Millisecond
)

// local serves containerd. What is not found here, containerd gets from the registry.
type local struct{ m *Mirror }

// Manifest implements readapi.Content. Tags are left to the registry.
func (l local) Manifest(r *http.Request, repository, reference string) ([]byte, error) {
	k, err := l.key(r, repository, digest.Digest(reference))
	if err != nil {
		return nil, err
	}
	err = l.m.checkPublic(r.Context(), k)
	var text []byte
	if err == nil {
		text, err = l.m.manifest(r.Context(), k)
	}
	if err != nil {
		l.m.passed(k, err)
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	l.m.learn(k.Repository, text)
	l.m.metrics.sent.WithLabelValues(toContainerd).Add(float64(len(text)))
	return text, nil
}

// Blob implements readapi.Content. It returns once the blob is complete and verified, because containerd keeps
// whatever it gets.
func (l local) Blob(r *http.Request, repository string, digest digest.Digest) (io.ReadSeekCloser, error) {
	k, err := l.blobKey(r, repository, digest)
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodHead && r.Header.Get(readapi.PartsHeader) == readapi.PartsAnywhere {
		return l.size(k)
	}
	if r.Method != http.MethodGet {
		return nil, fs.ErrNotExist
	}
	if r.Header.Get(readapi.PartsHeader) != "" {
		return l.part(r, k)
	}
	b, err := l.m.fetch(r.Context(), k, false)
	if err != nil {
		l.m.passed(k, err)
		return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	l.m.metrics.sent.WithLabelValues(toContainerd).Add(float64(b.size))
	return b, nil
}

// part returns a blob if the range of a request is on this node or another one, for a snapshotter that reads parts of
// blobs and verifies them by itself. It does not fetch what no node has, because that would bring the whole blob: the
// snapshotter gets the part from the registry.
func (l local) part(r *http.Request, k blobindex.Key) (io.ReadSeekCloser, error) {
	var first, last uint64
	_, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last)
	if err != nil || last < first {
		return nil, fs.ErrNotExist
	}
	length := last - first + 1
	source := readapi.SourceNode
	from, size, done := l.m.holding(r.Context(), k.Digest, first, length)
	anywhere := r.Header.Get(readapi.PartsHeader) == readapi.PartsAnywhere
	if anywhere {
		l.m.reads(k)
	}
	if from == nil && anywhere {
		if from, size, err = l.m.borrow(r.Context(), k, first, length); err != nil {
			return nil, fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		}
		source, done = readapi.SourcePeer, func() {}
	}
	if from == nil {
		return nil, fs.ErrNotExist
	}
	l.m.metrics.sent.WithLabelValues(toSnapshotter).Add(float64(length))
	return part{io.NewSectionReader(from, 0, int64(size)), source, done}, nil
}

// size returns a blob with only its size, from a manifest.
func (l local) size(k blobindex.Key) (io.ReadSeekCloser, error) {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	size := l.m.sizes[k]
	if size == 0 {
		return nil, fs.ErrNotExist
	}
	return part{io.NewSectionReader(lentPart{}, 0, int64(size)), readapi.SourceNode, func() {}}, nil
}

// part is a blob from which ranges can be read.
type part struct {
	*io.SectionReader
	source string
	done   func()
}

// Source implements readapi.Part.
func (p part) Source() string { return p.source }

// Close implements io.Closer.
func (p part) Close() error {
	p.done()
	return nil
}

// key returns the key of what containerd asks for, if this node shares it. containerd names the registry in a
// parameter.
func (l local) key(r *http.Request, repository string, d digest.Digest) (blobindex.Key, error) {
	k, ok := keyOf(r.URL.Query().Get("ns")+"/"+repository, d)
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if !ok || l.m.shared[k.Repository] == sharedNothing {
		return k, fs.ErrNotExist
	}
	return k, nil
}

// blobKey is key for a blob that is no manifest.
func (l local) blobKey(r *http.Request, repository string, d digest.Digest) (blobindex.Key, error) {
	k, err := l.key(r, repository, d)
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if err == nil && !l.m.mayShare(k) {
		err = fs.ErrNotExist
	}
	return k, err
}

// passed records that containerd is sent to the registry.
func (m *Mirror) passed(k blobindex.Key, err error) {
	m.metrics.passed.Inc()
	m.cfg.Log.Info("the mirror leaves a blob to the registry",
		"repository", k.Repository, "digest", digestOf(k), "error", err)
}

// manifest returns a manifest: from containerd, a peer, the cache, or the registry.
func (m *Mirror) manifest(ctx context.Context, k blobindex.Key) ([]byte, error) {
	if text, err := content.ReadBlob(ctx, m.cfg.Content, ocispec.Descriptor{Digest: digestOf(k)}); err == nil {
		return text, nil
	}
	if size := m.ask(ctx, k); size > 0 && size <= maxManifest {
		if b, err := m.fetch(ctx, k, true); err == nil {
			defer b.Close()
			return io.ReadAll(b)
		}
	}
	source, text, err := fromRegistry, []byte(nil), error(nil)
	if m.caches.serves(k.Repository, time.Now()) {
		source = fromCache
		if text, err = m.caches.manifest(ctx, k); err != nil {
			m.caches.failed(k.Repository, time.Now())
			m.cfg.Log.Info("the cache does not send a manifest", "repository", k.Repository, "error", err)
		}
	}
	if text == nil {
		source = fromRegistry
		text, err = m.registries.manifest(ctx, k)
	}
	if err == nil {
		m.metrics.received.WithLabelValues(source).Add(float64(len(text)))
	}
	return text, err
}

// learn remembers the sizes of the blobs that a manifest or index names.
func (m *Mirror) learn(repository string, text []byte) {
	var named struct {
		Config            ocispec.Descriptor
		Layers, Manifests []ocispec.Descriptor
	}
	if json.Unmarshal(text, &named) != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range slices.Concat(named.Layers, named.Manifests, []ocispec.Descriptor{named.Config}) {
		if k, ok := keyOf(repository, d.Digest); ok && d.Size > 0 && len(m.sizes) < maxSizes {
			m.sizes[k] = uint64(d.Size)
		}
	}
}

// ask returns the size of a blob, from a manifest or the index; 0 if unknown.
func (m *Mirror) ask(ctx context.Context, k blobindex.Key) uint64 {
	m.mu.Lock()
	if size := m.sizes[k]; size > 0 {
		m.mu.Unlock()
		return size
	}
	q := m.questions[k]
	if q == nil {
		q = &question{answered: make(chan struct{})}
		m.questions[k] = q
		m.changes[k] = wire.Blob{Digest: k.Digest, State: wire.BlobPartial}
		m.notify()
	}
	m.mu.Unlock()
	timeout := time.NewTimer(m.cfg.askTimeout)
	defer timeout.Stop()
	select {
	case <-q.answered:
		return q.size
	case <-timeout.C:
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.questions[k] == q {
		delete(m.questions, k)
	}
	return 0
}

// blob is a complete blob in a file of the mirror. It is an os.File, so that the kernel sends it with sendfile(2).
type blob struct {
	*os.File
	size uint64
	done func()
}

// Close implements io.Closer.
func (b blob) Close() error {
	defer b.done()
	return b.File.Close()
}

// fetch returns a blob once it is complete.
func (m *Mirror) fetch(ctx context.Context, k blobindex.Key, manifest bool) (blob, error) {
	size := m.ask(ctx, k)
	if size == 0 {
		return blob{}, fmt.Errorf("neither a manifest nor a peer says how large it is")
	}
	m.mu.Lock()
	d, err := m.begin(ctx, k, size, manifest)
	m.mu.Unlock()
	if err != nil {
		return blob{}, err
	}
	select {
	case <-d.ended:
		err = d.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		m.leave(d)
		return blob{}, err
	}
	f, err := os.Open(d.file.Name()) // with an offset of its own
	if err != nil {
		m.leave(d)
		return blob{}, err
	}
	return blob{f, size, func() { m.leave(d); m.Scan() }}, nil
}
