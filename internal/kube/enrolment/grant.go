// SPDX-License-Identifier: Apache-2.0

package enrolment

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"

	"wangell.loutres.me/internal/wire"
)

// Grant lets the holder of a certificate fetch a blob of an image from a node until a time. The controller makes it
// with the key of that node, and the node checks it without knowing any other rights.
type Grant [sha256.Size]byte

// NewGrant returns the grant for the client with a certificate's fingerprint. node is the key of the node that is
// asked, and expires is in seconds of Unix time.
func NewGrant(node wire.Key, client [32]byte, digest wire.BlobDigest, expires uint64) (g Grant) {
	key := node.Derive("blob grants")
	mac := hmac.New(sha256.New, key[:])
	mac.Write(client[:])
	mac.Write(digest[:])
	mac.Write(binary.BigEndian.AppendUint64(nil, expires))
	mac.Sum(g[:0])
	return g
}

// Allows reports whether NewGrant made the grant for these arguments.
func (g Grant) Allows(node wire.Key, client [32]byte, digest wire.BlobDigest, expires uint64) bool {
	want := NewGrant(node, client, digest, expires)
	return hmac.Equal(g[:], want[:])
}
