// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// brokenFor is how long a host that stalled, or whose response ended early, is asked after the others.
const brokenFor = 30 * time.Second

// brokenHosts remembers which hosts of registries broke off. A nil one remembers nothing.
type brokenHosts struct {
	mu sync.Mutex
	at map[string]time.Time
}

// note notes that a host broke off.
func (b *brokenHosts) note(host string, now time.Time) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.at == nil {
		b.at = map[string]time.Time{}
	}
	b.at[host] = now
}

// last returns hosts in their order, with those that broke off within brokenFor moved to the end, the latest one
// last.
func (b *brokenHosts) last(hosts []docker.RegistryHost, now time.Time) []docker.RegistryHost {
	if b == nil {
		return hosts
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for host, at := range b.at {
		if now.Sub(at) >= brokenFor {
			delete(b.at, host)
		}
	}
	hosts = slices.Clone(hosts)
	slices.SortStableFunc(hosts, func(x, y docker.RegistryHost) int { return b.at[x.Host].Compare(b.at[y.Host]) })
	return hosts
}
