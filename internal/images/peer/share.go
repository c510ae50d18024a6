// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/wire"
)

// privateFor is how long an image that a registry has refused counts as one that needs credentials.
const privateFor = time.Minute

var errPrivate = errors.New("the registry does not give it to everybody")

// Want sets the images that the daemon pulls. The mirror shares their repositories, without those that kubelet pulls,
// with its own credentials.
func (m *Mirror) Want(images []wire.WantedImage) {
	var planned []string
	for _, i := range images {
		if repository := imageref.Repository(i.Ref); repository != "" && i.Policy != wire.ImageNever {
			planned = append(planned, repository)
		}
	}
	m.mu.Lock()
	m.planned = planned
	m.share()
	m.mu.Unlock()
	m.Scan()
}

// Need sets the repositories of images that pods on this node may need, whether or not they are pulled ahead of need.
// The mirror shares only images that the registry gives to everybody.
func (m *Mirror) Need(repositories []string) {
	m.mu.Lock()
	m.needed = repositories
	m.share()
	m.mu.Unlock()
	m.Scan()
}

// share decides what is shared, and forgets the rest. m.mu is held.
func (m *Mirror) share() {
	before := m.shared
	m.shared = make(map[string]sharing, len(m.planned)+len(m.needed))
	for _, r := range m.needed {
		m.shared[r] = sharedPublic
	}
	for _, r := range m.planned {
		m.shared[r] = sharedAll
	}
	less := func(k blobindex.Key) bool { return m.shared[k.Repository] < before[k.Repository] }
	for k := range m.sizes {
		if less(k) {
			delete(m.sizes, k)
		}
	}
	for k := range m.public {
		if m.shared[k.Repository] == sharedNothing {
			delete(m.public, k)
		}
	}
	for k := range m.stored {
		if less(k) {
			m.forget(k)
		}
	}
	for k, d := range m.downloads { // they came without credentials
		if m.shared[k.Repository] == sharedNothing {
			m.drop(d, errNotShared)
		}
	}
	for k := range m.lazy {
		if less(k) {
			m.forgetLazy(k)
		}
	}
}

// checkPublic returns nil if a manifest or index may be passed on. It asks the registry, or its cache, if it has to.
func (m *Mirror) checkPublic(ctx context.Context, k blobindex.Key) error {
	now := time.Now()
	m.mu.Lock()
	may, known := m.mayShare(k), m.public[k]
	m.mu.Unlock()
	switch {
	case may:
		return nil
	case now.Before(known.until):
		return known.err
	}
	err := m.askPublic(ctx, k, now)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p := public{err: err}
	var network net.Error
	switch {
	case errors.As(err, &network), errors.Is(err, errPaused):
		p.until = time.Now().Add(registryPause)
	case err != nil:
		p.err, p.until = fmt.Errorf("%w: %w", errPrivate, err), time.Now().Add(privateFor)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shared[k.Repository] != sharedNothing && len(m.public) < maxSizes {
		m.public[k] = p
	}
	return p.err
}

// errPaused is the error of a registry that is not asked for a while.
var errPaused = errors.New("the registry is not asked now, because it has failed")

// askPublic asks the cache, then the registry, for a manifest or index without its content.
func (m *Mirror) askPublic(ctx context.Context, k blobindex.Key, now time.Time) error {
	if m.caches.serves(k.Repository, now) && m.caches.has(ctx, k) == nil {
		return nil
	}
	if m.registries.down(k.Repository, now) {
		return errPaused
	}
	err := m.registries.has(ctx, k)
	var limited *limitedError
	if errors.As(err, &limited) {
		m.registries.failed(k.Repository, err, time.Now())
		return fmt.Errorf("%w: %w", errPaused, err)
	}
	return err
}

// images returns the manifests of the images that containerd has and that may be shared.
func (m *Mirror) images(ctx context.Context) (out []blobindex.Key) {
	digests, err := m.cfg.Images(ctx)
	if err != nil {
		if ctx.Err() == nil {
			m.cfg.Log.Warn("cannot look for images to share with other nodes", "error", err)
		}
		return nil
	}
	seen := map[blobindex.Key]bool{}
	silent := map[string]bool{} // registries that do not answer
	for name, text := range digests {
		k, ok := keyOf(imageref.Repository(name), digest.Digest(text))
		registry, _, _ := strings.Cut(k.Repository, "/")
		m.mu.Lock()
		shared, known := m.shared[k.Repository] != sharedNothing, m.mayShare(k)
		m.mu.Unlock()
		if !ok || !shared || seen[k] || !known && silent[registry] {
			continue
		}
		seen[k] = true
		if err = m.checkPublic(ctx, k); err == nil {
			out = append(out, k)
		}
		var network net.Error
		silent[registry] = silent[registry] || errors.As(err, &network)
	}
	return out
}
