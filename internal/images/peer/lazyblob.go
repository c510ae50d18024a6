// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"time"

	"wangell.loutres.me/internal/decide/swarm"
)

// lazyBlob is a layer that the node's snapshotter reads parts of, or has. Mirror.mu guards it.
type lazyBlob struct {
	asked    time.Time     // the snapshotter's last request
	reported time.Time     // the last report to the index
	dirty    bool          // there is something to report
	first    chan struct{} // closed at the index' first answer
	answered bool
	pause    time.Duration
	offers   []offer
	told     swarm.Set // what the index has recorded for this node; nil: nothing
	whole    bool      // the index has recorded that this node has all of it
}

// firstPause is the pause between two reports of a blob until the index sets another one.
const firstPause = 200 * time.Millisecond

// maxBlobs bounds the blobs that are shared. The index accepts as many of a node.
const maxBlobs = 1 << 15
