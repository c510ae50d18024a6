// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"wangell.loutres.me/internal/wire"
)

// nodeKey is the key of this node, which may be replaced while the daemon runs.
type nodeKey struct {
	mu  sync.Mutex
	key wire.Key
}

func (k *nodeKey) get() wire.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key
}

func (k *nodeKey) set(key wire.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.key = key
}
