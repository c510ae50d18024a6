// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"os"
	"sync"
	"time"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
)

const (
	// maxTries is how often a blob is put together before its download fails.
	maxTries = 3
	// keptFor is how long a download without users continues: containerd comes back after an interruption.
	keptFor = 5 * time.Minute
)

var (
	errNotShared = errors.New("no service of this node uses it any more")
	errDigest    = errors.New("the bytes from the registry and the peers do not have the digest")
	errNoSource  = errors.New("neither the registry nor a peer sends what is missing")
)

// fileError is an error of the file of a blob, with which no source can help.
type fileError struct{ error }

// Unwrap returns the underlying error, with the name of the file.
func (e *fileError) Unwrap() error { return e.error }

// download is a blob that is being fetched into a file, or is complete and not known to be in containerd yet.
// Mirror.mu guards it unless noted otherwise.
type download struct {
	key      blobindex.Key
	manifest bool   // it is a manifest or index, which registries serve at another path; constant
	size     uint64 // constant
	pieces   int    // constant
	file     *os.File
	ctx      context.Context // of its requests
	cancel   context.CancelFunc
	ended    chan struct{} // closed once it is complete or has failed
	err      error         // why it has failed

	have, busy swarm.Set
	from       []string // the source of each piece: a peer, cacheSource, or empty for the registry
	suspects   map[int][]suspect
	tries      int
	users      int       // that wait for it, or read it
	used       time.Time // when users became 0

	lease    swarm.Set
	offers   []offer
	answered time.Time
	reported time.Time
	pause    time.Duration
	dirty    bool      // some pieces have not been reported
	failing  time.Time // when pieces stopped coming while the registry fails; zero if it does not fail
	moved    time.Time // when the last piece came, or the download began
	// whether it is being read from the cache, and whether it ever was
	streaming, streamed bool

	hashing sync.Mutex // guards, and is taken before Mirror.mu:
	hash    hash.Hash  // of the first pieces
	hashed  int        // their number
}

// offer is the index's information about a peer.
type offer struct {
	peer    string
	grant   [32]byte
	expires uint64
	have    swarm.Set
}

// suspect is a piece of a blob that did not have its digest.
type suspect struct {
	peer string
	sum  [sha256.Size]byte
}

// complete reports whether a blob is complete and verified. m.mu is held.
func (d *download) complete() bool {
	select {
	case <-d.ended:
		return d.err == nil
	default:
		return false
	}
}

// read copies a piece out of the file.
func (d *download) read(piece int, to io.Writer) error {
	offset, length := swarm.Bounds(d.size, piece)
	_, err := io.Copy(to, io.NewSectionReader(d.file, int64(offset), int64(length)))
	return err
}

// sum returns the SHA-256 of a piece.
func (d *download) sum(piece int) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	err = d.read(piece, h)
	h.Sum(sum[:0])
	return sum, err
}

// barred reports whether a peer is not asked for a piece again. m.mu is held.
func (d *download) barred(peer string, piece int) bool {
	for _, s := range d.suspects[piece] {
		if s.peer == peer || d.tries == maxTries-1 {
			return true
		}
	}
	return false
}
