// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"encoding/hex"
	"strings"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/decide/blobindex"
)

// keyOf returns the key of a blob; ok is false for digests other than SHA-256.
func keyOf(repository string, d digest.Digest) (k blobindex.Key, ok bool) {
	text, ok := strings.CutPrefix(string(d), "sha256:")
	sum, err := hex.DecodeString(text)
	if !ok || err != nil || len(sum) != len(k.Digest) {
		return k, false
	}
	return blobindex.Key{Repository: repository, Digest: [32]byte(sum)}, true
}

// digestOf returns the digest of a key.
func digestOf(k blobindex.Key) digest.Digest {
	return digest.NewDigestFromBytes(digest.SHA256, k.Digest[:])
}
