// SPDX-License-Identifier: Apache-2.0

// Package registryhosts keeps the hosts that serve a registry's images, with their connections and tokens, for
// concurrent use.
package registryhosts

import (
	"errors"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
)

// lifetime is how long the hosts of a registry are used before their settings are read again.
const lifetime = time.Minute

// Cache remembers the hosts of registries. It is safe for concurrent use.
type Cache struct {
	look docker.RegistryHosts
	now  func() time.Time

	mu    sync.Mutex
	known map[string]*entry // by registry
}

// entry is what look returned for a registry.
type entry struct {
	hosts []docker.RegistryHost
	until time.Time
}

// New returns a cache of the results of look, which is called once at a time.
func New(look docker.RegistryHosts) *Cache {
	return &Cache{look: look, now: time.Now, known: map[string]*entry{}}
}

// Hosts returns the hosts of a registry, in the order in which to ask them. Their authorizers are as Shared returns
// them. Errors of look are returned, and not remembered.
func (c *Cache) Hosts(registry string) ([]docker.RegistryHost, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for k, e := range c.known {
		if !now.Before(e.until) {
			delete(c.known, k)
		}
	}
	if e := c.known[registry]; e != nil {
		return e.hosts, nil
	}
	list, err := c.look(registry)
	if err != nil {
		return nil, err
	}
	e := &entry{hosts: list, until: now.Add(lifetime)}
	shared := map[docker.Authorizer]docker.Authorizer{} // hosts may have one in common
	for i := range e.hosts {
		inner := e.hosts[i].Authorizer
		if inner == nil {
			continue
		}
		if shared[inner] == nil {
			shared[inner] = newAuthorizer(inner, func(err error) { c.failed(registry, e, err) })
		}
		e.hosts[i].Authorizer = shared[inner]
	}
	c.known[registry] = e
	return e.hosts, nil
}

// failed forgets hosts whose authorizer has failed, as it would return that error again and again. That is right only
// if the registry has refused the client.
func (c *Cache) failed(registry string, e *entry, err error) {
	var status remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &status) && status.StatusCode >= 400 && status.StatusCode < 500 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[registry] == e {
		delete(c.known, registry)
	}
}
