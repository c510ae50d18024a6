// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"

	"wangell.loutres.me/internal/decide/blobindex"
)

const (
	// cachePause is how long a cache is not asked after a failure.
	cachePause = 30 * time.Second
	// cachePatience is how long a blob may get no piece before a node fetches the pieces of its lease from the
	// registry although that has a cache.
	cachePatience = 5 * time.Second
	// cacheSource is the source of a piece that came from a cache.
	cacheSource = "cache"
)

// caches are pull-through registries in the cluster, such as the distribution project's registry with a proxy
// section: they get what they lack from the registry whose images they serve. Such a cache answers a request for a
// part of a blob that it lacks with all of it, and fetches a blob anew for each request that comes before it has it.
// So one node, the one with the lease of a blob's first piece, reads all of the blob from the cache, and the others
// get it from there.
type caches struct {
	hosts map[string]docker.RegistryHost // by registry

	mu    sync.Mutex
	until map[string]time.Time // by registry: when it may be asked again
}

// CheckCaches checks Config.Caches.
func CheckCaches(at map[string]string) error {
	_, err := newCaches(at)
	return err
}

func newCaches(at map[string]string) (*caches, error) {
	c := &caches{hosts: map[string]docker.RegistryHost{}, until: map[string]time.Time{}}
	for registry, text := range at {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" {
			return nil, fmt.Errorf("cache of registry %s: %q: want http://HOST:PORT or https://HOST:PORT", registry, text)
		}
		c.hosts[registry] = docker.RegistryHost{
			Client: &http.Client{Transport: &http.Transport{
				DialContext: dialer.DialContext, TLSHandshakeTimeout: dialTimeout, IdleConnTimeout: idleTimeout,
			}},
			Host: u.Host, Scheme: u.Scheme, Path: "/v2", Capabilities: docker.HostCapabilityPull,
		}
	}
	return c, nil
}

// serves reports whether a repository has a cache that can be asked at present.
func (c *caches) serves(repository string, now time.Time) bool {
	registry, _, _ := strings.Cut(repository, "/")
	if _, known := c.hosts[registry]; !known {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !now.Before(c.until[registry])
}

// failed records that a cache could not be asked, or has sent something else.
func (c *caches) failed(repository string, now time.Time) {
	registry, _, _ := strings.Cut(repository, "/")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until[registry] = now.Add(cachePause)
}

// open returns all of a blob or manifest.
func (c *caches) open(ctx context.Context, k blobindex.Key, manifest bool) (io.ReadCloser, error) {
	registry, name, _ := strings.Cut(k.Repository, "/")
	host := c.hosts[registry]
	q := query{
		method: http.MethodGet, host: &host, registry: registry, name: name, kind: kindOf(manifest), digest: digestOf(k),
	}
	return q.do(ctx)
}

// has returns nil if the cache has, or gets, a manifest or index.
func (c *caches) has(ctx context.Context, k blobindex.Key) error {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	registry, name, _ := strings.Cut(k.Repository, "/")
	host := c.hosts[registry]
	q := query{
		method: http.MethodHead, host: &host, registry: registry, name: name, kind: kindOf(true), digest: digestOf(k),
	}
	body, err := q.do(ctx)
	if err != nil {
		return err
	}
	return body.Close()
}

// manifest returns a manifest or index, and verifies its digest.
func (c *caches) manifest(ctx context.Context, k blobindex.Key) ([]byte, error) {
	body, err := c.open(ctx, k, true)
	if err != nil {
		return nil, err
	}
	return readManifest(body, k)
}

// close ends connections that are not used.
func (c *caches) close() {
	for _, h := range c.hosts {
		h.Client.CloseIdleConnections()
	}
}
