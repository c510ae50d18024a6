// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/containerd/stargz-snapshotter/fs/layer"
	"github.com/opencontainers/go-digest"
	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/images/lazy/failures"
)

// Stats counts what a Store did.
type Stats struct {
	// Blobs is the number of open blobs, Complete the number of those that are complete and verified.
	Blobs, Complete int
	// Waits is the number of reads that had to wait for the registry, Failures the number of those that ended with an
	// error.
	Waits, Failures int
	// UrgentBytes arrived for waiting reads, BackgroundBytes before any read.
	UrgentBytes, BackgroundBytes int64
	// Sources are the same bytes by source: fromNode, fromPeer, fromMirror and fromRegistry.
	Sources map[string]int64
	// Distrusted is how often a layer with parts from the node's mirror was found wrong.
	Distrusted int
	// Missing is the number of missing bytes of the open blobs, in whole blocks.
	Missing int64
}

// Store keeps the mounted blobs, and fetches all of them. Waiting reads go first: fetching in the background pauses
// meanwhile.
type Store struct {
	root     string // of traces
	dir      string
	piece    int // blocks of a request in the background
	patience time.Duration
	settle   time.Duration
	log      *slog.Logger
	failed   func(failures.Failure)

	mu      sync.Mutex
	changed *sync.Cond // anything below, or a block
	blobs   map[digest.Digest]*Blob
	loading map[digest.Digest]bool // will be in blobs
	early   map[digest.Digest]bool // opened ahead
	ctx     context.Context        // until close
	cancel  context.CancelFunc
	running map[*request]*Blob
	waiting int // reads
	clock   uint64
	opened  time.Time // when a blob was last opened
	stats   Stats
	waits   prometheus.Histogram
	closed  bool
	// unpacking is set while blobs are unpacked in the background.
	unpacking bool
	unpacks   chan func() // for the threads of unpackThread
	unpackers sync.Map    // their IDs
	tasks     sync.WaitGroup
}

// Blob is a packed layer. The bytes that have arrived are in a sparse file. The store's mutex guards its fields,
// except for those that never change.
type Blob struct {
	store  *Store
	source source
	image  string // as the pull named it
	order  uint64 // random, for blobs without any read: nodes begin with different ones
	size   int64
	file   *os.File
	notes  *os.File // which blocks are present

	resolver *layer.Resolver // guarded by the filesystem
	recorder *recorder

	refs    int    // mounts
	unpack  func() // called once everything mounted is present; nil: done, or not wanted
	blocks  blocks
	begun   map[int]beginning // missing blocks that are present in part
	left    int               // number of missing blocks
	plan    plan              // what the background fetches first
	cursor  int               // where the background continues
	lent    []bool            // blocks that came from the node's mirror and are not verified
	borrows int               // their number
	expired int               // reads that failed after a wait
	doubts  int               // how often lent blocks were wrong
	wary    bool              // lent blocks were wrong: only the registry is asked
	used    uint64            // the store's clock at the last read that waited
	pause   time.Duration
	after   time.Time      // no request in the background before
	last    error          // of the last request
	limited time.Time      // the registry has asked for a pause until then
	failing bool           // reported as an event; until a request succeeds
	reading map[uint32]int // reads of files in progress
	checked bool           // the whole is being compared with its digest, or has been
	whole   bool           // it has its digest
	ctx     context.Context
	cancel  context.CancelFunc
}

// beginning is the part of a block that arrived before a response ended.
type beginning struct {
	size int64
	lent bool // some of it is from the node's mirror, which has not verified it
}

// request is one that runs.
type request struct {
	run    run
	urgent bool      // a read waits for it
	heard  time.Time // when bytes last arrived
}
