// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"wangell.loutres.me/internal/base/backoff"
)

// Retries of a download without progress, and the pauses between them, unless the registry asks for a longer one.
const (
	mostFailures = 5
	firstPause   = 200 * time.Millisecond
	longestPause = 5 * time.Second
	longestAsked = time.Minute
)

// blobReader reads a blob, in several requests if connections break. Its last Read fails if the digest is wrong.
type blobReader struct {
	ctx  context.Context
	get  func(from int64) (*http.Response, error)
	want ocispec.Descriptor
	sum  digest.Digester

	body     io.ReadCloser
	n        int64
	failures int // since the last progress
	pause    time.Duration
	done     bool
}

// Read implements io.Reader.
func (b *blobReader) Read(p []byte) (int, error) {
	if b.done {
		return 0, io.EOF
	}
	for {
		if b.n == b.want.Size {
			return 0, b.finish()
		}
		n, err := b.readSome(p)
		if n > 0 {
			b.n += int64(n)
			b.sum.Hash().Write(p[:n])
			b.failures, b.pause = 0, 0
			return n, nil
		}
		if err == nil {
			continue
		}
		if err := b.retry(err); err != nil {
			return 0, fmt.Errorf("blob %s, after %d of %d bytes: %w", b.want.Digest, b.n, b.want.Size, err)
		}
	}
}

// finish verifies the digest.
func (b *blobReader) finish() error {
	if got := b.sum.Digest(); got != b.want.Digest {
		return fmt.Errorf("blob %s is damaged: its content has the digest %s: push the image again", b.want.Digest, got)
	}
	b.done = true
	return io.EOF
}

// finalError is an error that another request would not change.
type finalError struct{ error }

// Unwrap returns the error.
func (e finalError) Unwrap() error { return e.error }

// readSome reads from the current response, or from a new one.
func (b *blobReader) readSome(p []byte) (int, error) {
	if b.body == nil {
		if err := b.request(); err != nil {
			return 0, err
		}
	}
	n, err := b.body.Read(p[:min(int64(len(p)), b.want.Size-b.n)])
	if err != nil && n == 0 {
		b.body.Close()
		b.body = nil
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, err
	}
	return n, nil
}

func (b *blobReader) request() error {
	r, err := b.get(b.n)
	if err != nil {
		return err
	}
	if err := transport.CheckError(r, http.StatusOK, http.StatusPartialContent); err != nil {
		r.Body.Close()
		if r.StatusCode != http.StatusTooManyRequests && r.StatusCode < http.StatusInternalServerError {
			return finalError{explain(r.Request.Host, err)}
		}
		if pause, _ := backoff.RetryAfter(r, time.Now()); pause > 0 {
			b.pause = min(pause, longestAsked)
		}
		return err
	}
	if b.n > 0 && r.StatusCode == http.StatusOK { // a registry without ranges
		if _, err := io.CopyN(io.Discard, r.Body, b.n); err != nil {
			r.Body.Close()
			return err
		}
	}
	b.body = r.Body
	return nil
}

// retry waits before the next request. It returns an error if there should be none.
func (b *blobReader) retry(err error) error {
	if b.ctx.Err() != nil {
		return b.ctx.Err()
	}
	b.failures++
	var final finalError
	if errors.As(err, &final) || b.failures >= mostFailures {
		return err
	}
	pause := max(b.pause, firstPause)
	b.pause = backoff.Next(pause, firstPause, max(longestPause, b.pause))
	select {
	case <-b.ctx.Done():
		return b.ctx.Err()
	case <-time.After(pause):
		return nil
	}
}

// Close implements io.Closer.
func (b *blobReader) Close() error {
	if b.body == nil {
		return nil
	}
	err := b.body.Close()
	b.body = nil
	return err
}

// explain adds what a user can do about an error of a registry.
func explain(registry string, err error) error {
	var t *transport.Error
	if !errors.As(err, &t) {
		return err
	}
	switch t.StatusCode {
	case http.StatusNotFound:
		return fmt.Errorf("not found in registry %s: check the name: %w", registry, err)
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("registry %s refuses it: check the name, or log in (docker login %s): %w", registry, registry, err)
	}
	return err
}
