// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/time/rate"

	"wangell.loutres.me/internal/base/pin"
	"wangell.loutres.me/internal/decide/blobindex"
	"wangell.loutres.me/internal/decide/swarm"
	"wangell.loutres.me/internal/images/lazy/packed"
	"wangell.loutres.me/internal/kube/enrolment"
	"wangell.loutres.me/internal/wire"
)

// sendAtOnce is the number of bytes sent between two looks at the limit.
const sendAtOnce = 256 << 10

// readAtOnce is the number of bytes read from a blob at once: each read from containerd's store is a call of its API.
const readAtOnce = 1 << 20

// Identity is what other nodes learn about this one from the controller.
func (m *Mirror) Identity() *wire.Mirror {
	return &wire.Mirror{Addr: m.cfg.Listen, Fingerprint: pin.Sum(m.certificate)}
}

// servePeer answers another node, whose certificate proves that the grant is its own.
func (m *Mirror) servePeer(w http.ResponseWriter, r *http.Request) {
	select {
	case m.served <- struct{}{}:
		defer func() { <-m.served }()
	default:
		http.Error(w, "too many requests of peers", http.StatusServiceUnavailable)
		return
	}
	digest, offset, length, err := m.admit(r, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	from, size, done := m.holding(r.Context(), digest, offset, length)
	if from == nil {
		http.Error(w, "not here", http.StatusNotFound)
		return
	}
	defer done()
	w.Header().Set("Content-Length", strconv.FormatUint(length, 10))
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, offset+length-1, size))
	w.WriteHeader(http.StatusPartialContent)
	// An error means that the peer is gone; it notices that bytes are missing.
	_, _ = io.CopyBuffer(limited{w, r.Context(), m.limiter, &m.metrics},
		io.NewSectionReader(from, int64(offset), int64(length)), make([]byte, min(length, readAtOnce)))
}

// admit returns the requested range, if the grant allows it.
func (m *Mirror) admit(r *http.Request, now time.Time) (digest wire.BlobDigest, offset, length uint64, err error) {
	text, found := strings.CutPrefix(r.URL.Path, blobsPath)
	sum, err := hex.DecodeString(text)
	var last uint64
	if _, scan := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &offset, &last); scan != nil || err != nil || !found ||
		len(sum) != len(digest) || last < offset || r.Method != http.MethodGet {
		return digest, 0, 0, fmt.Errorf("want GET %sSHA256 with a range", blobsPath)
	}
	digest = wire.BlobDigest(sum)
	grant, err := hex.DecodeString(r.Header.Get(grantHeader))
	expires, failed := strconv.ParseUint(r.Header.Get(expiresHeader), 10, 63)
	if err != nil || failed != nil || len(grant) != len(enrolment.Grant{}) || r.TLS == nil ||
		len(r.TLS.PeerCertificates) == 0 {
		return digest, 0, 0, fmt.Errorf("want a grant")
	}
	client := sha256.Sum256(r.TLS.PeerCertificates[0].Raw)
	switch {
	case !enrolment.Grant(grant).Allows(m.cfg.Key(), client, digest, expires):
		return digest, 0, 0, fmt.Errorf("this grant is not for this node and blob")
	case uint64(now.Unix()) > expires:
		return digest, 0, 0, fmt.Errorf("the grant has expired")
	}
	return digest, offset, last - offset + 1, nil
}

// holding returns a blob if this node has a range of it; else nil. The caller calls done.
func (m *Mirror) holding(
	ctx context.Context, digest wire.BlobDigest, offset, length uint64,
) (from io.ReaderAt, size uint64, done func()) {
	m.mu.Lock()
	var stored []blobindex.Key
	lazy := false
	for repository := range m.shared {
		k := blobindex.Key{Repository: repository, Digest: digest}
		if d := m.downloads[k]; d != nil && d.covers(offset, length) {
			d.users++
			m.mu.Unlock()
			return d.file, d.size, func() { m.leave(d) }
		}
		if _, ok := m.stored[k]; ok {
			stored = append(stored, k)
		}
		lazy = lazy || m.lazy[k] != nil
	}
	m.mu.Unlock()
	for _, k := range stored {
		r, err := m.cfg.Content.ReaderAt(ctx, ocispec.Descriptor{Digest: digestOf(k)})
		if err != nil {
			m.mu.Lock()
			m.forget(k)
			m.mu.Unlock()
			continue
		}
		if size = uint64(r.Size()); offset+length <= size && offset+length > offset {
			return r, size, func() { r.Close() }
		}
		r.Close()
	}
	if lazy {
		d := digestOf(blobindex.Key{Digest: digest})
		if f, notes, err := packed.Open(m.cfg.Layers, d, int64(offset), int64(length)); err == nil {
			return f, uint64(notes.Size), func() { f.Close() }
		}
	}
	return nil, 0, nil
}

// covers reports whether a range is present. Mirror.mu is held.
func (d *download) covers(offset, length uint64) bool { return covers(d.have, d.size, offset, length) }

// covers reports whether pieces of a blob include a range.
func covers(have swarm.Set, size, offset, length uint64) bool {
	if offset+length > size || offset+length < offset {
		return false
	}
	piece := swarm.PieceSize(size)
	for p := offset / piece; p <= (offset+length-1)/piece; p++ {
		if !have.Has(int(p)) {
			return false
		}
	}
	return true
}

// limited writes no faster than the limit.
type limited struct {
	http.ResponseWriter
	ctx     context.Context
	limiter *rate.Limiter
	metrics *metrics
}

// Write implements io.Writer.
func (w limited) Write(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		part := b[:min(len(b), sendAtOnce)]
		if w.limiter != nil {
			if err = w.limiter.WaitN(w.ctx, len(part)); err != nil {
				return n, err
			}
		}
		var sent int
		sent, err = w.ResponseWriter.Write(part)
		w.metrics.sent.WithLabelValues(toPeer).Add(float64(sent))
		b, n = b[sent:], n+sent
	}
	return n, err
}
