// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/wire"
)

// peer is another node's mirror. Mirror.mu guards it.
type peer struct {
	at        wire.Mirror // constant
	client    *http.Client
	busy      int       // requests in progress
	notBefore time.Time // it is asked again after a failure
	free      time.Time // it is asked again after it was busy with others
}

// opener returns an opener for parts of a blob from a peer.
func (p *peer) opener(k blobindex.Key, o offer) opener {
	return func(ctx context.Context, offset, length uint64) (io.ReadCloser, error) {
		at := url.URL{Scheme: "https", Host: p.at.Addr.String(), Path: blobsPath + hex.EncodeToString(k.Digest[:])}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Range", byteRange(offset, length))
		req.Header.Set(grantHeader, hex.EncodeToString(o.grant[:]))
		req.Header.Set(expiresHeader, strconv.FormatUint(o.expires, 10))
		res, err := p.client.Do(req)
		if err != nil {
			return nil, err
		}
		return rangeOf(res, offset, length)
	}
}

// opener sends a request for a range, and returns it.
type opener func(ctx context.Context, offset, length uint64) (io.ReadCloser, error)

const (
	dialTimeout = 2 * time.Second
	// peerPause is how long a peer is not asked after a failure, and banFor after wrong pieces.
	peerPause = 3 * time.Second
	banFor    = 10 * time.Minute
	// maxPeers bounds the remembered peers without a request in progress.
	maxPeers = 256

	blobsPath     = "/v1/blobs/"
	grantHeader   = "Wangell-Grant"
	expiresHeader = "Wangell-Expires"
)

var dialer = net.Dialer{Timeout: dialTimeout}
