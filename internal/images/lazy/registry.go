// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/images/readapi"
)

// stall is how long a host may send nothing before the request is given up and another host is asked. It is shorter
// if reads have little patience.
const stall = 10 * time.Second

// source is a blob in a repository.
type source struct {
	hosts  docker.RegistryHosts
	broken *brokenHosts // nil: none is known
	ref    reference.Spec
	digest digest.Digest
	stall  time.Duration // 0: stall
}

// answer is a part of a blob.
type answer struct {
	io.ReadCloser
	size int64  // of the blob
	from string // fromNode, fromPeer, fromMirror or fromRegistry
	host string
}

// lent reports whether the bytes come from the node's mirror, which has not verified them.
func (a *answer) lent() bool { return a.from == fromNode || a.from == fromPeer }

// fetch requests the bytes [from, to). It asks the hosts in their order, mirrors before the registry, and those that
// broke off lately last. With lend set, it accepts bytes that the node's mirror has not verified.
func (s source) fetch(ctx context.Context, from, to int64, lend bool) (*answer, error) {
	hosts, err := s.hosts(s.ref.Hostname())
	if err != nil {
		return nil, fmt.Errorf("settings of registry %s: %w", s.ref.Hostname(), err)
	}
	var errs []error
	for _, h := range s.broken.last(hosts, time.Now()) {
		a, err := s.ask(ctx, h, from, to, lend)
		if errors.As(err, new(stalled)) {
			s.broken.note(h.Host, time.Now())
		}
		if err == nil && a.lent() && !lend {
			err = errors.Join(errLent, a.Close())
		}
		if err == nil {
			return a, nil
		}
		errs = append(errs, fmt.Errorf("registry %s: %w", h.Host, err))
	}
	return nil, errors.Join(errs...)
}

// sizeFrom returns the size of the blob if the node's mirror has it from the image's manifest; otherwise 0.
func (s source) sizeFrom(ctx context.Context) int64 {
	hosts, err := s.hosts(s.ref.Hostname())
	if err != nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	for _, h := range hosts {
		req, err := http.NewRequestWithContext(ctx, http.MethodHead, s.url(h, s.repository()), nil)
		if err != nil || req.URL.RawQuery == "" {
			continue
		}
		req.Header.Set(readapi.PartsHeader, readapi.PartsAnywhere)
		res, err := h.Client.Do(req)
		if err != nil {
			continue
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK && res.Header.Get(readapi.SourceHeader) != "" {
			return res.ContentLength
		}
	}
	return 0
}

// repository is the name of the blob's repository in its registry.
func (s source) repository() string { return strings.TrimPrefix(s.ref.Locator, s.ref.Hostname()+"/") }

// errLent is the error of a mirror whose bytes are refused, because some were wrong.
var errLent = errors.New("it has not verified what it has")

// ask requests bytes from one host, and repeats the request if the host wants credentials.
func (s source) ask(ctx context.Context, h docker.RegistryHost, from, to int64, lend bool) (*answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	after := cmp.Or(s.stall, stall)
	watchdog := time.AfterFunc(after, func() { cancel(stalled(after)) })
	give := func(err error) error {
		watchdog.Stop()
		if cause := context.Cause(ctx); errors.As(cause, new(stalled)) {
			err = cause
		}
		cancel(nil)
		return err
	}
	repository := s.repository()
	ctx = docker.WithScope(ctx, "repository:"+repository+":pull")
	for again := false; ; again = true {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url(h, repository), nil)
		if err != nil {
			return nil, give(err)
		}
		for name, values := range h.Header {
			req.Header[name] = values
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
		if req.URL.RawQuery != "" { // a mirror
			req.Header.Set(readapi.PartsHeader, readapi.PartsHere)
			if lend {
				req.Header.Set(readapi.PartsHeader, readapi.PartsAnywhere)
			}
		}
		if h.Authorizer != nil {
			if err := h.Authorizer.Authorize(ctx, req); err != nil {
				return nil, give(err)
			}
		}
		res, err := h.Client.Do(req)
		if err != nil {
			return nil, give(err)
		}
		if res.StatusCode == http.StatusPartialContent {
			size, err := sizeOf(res.Header.Get("Content-Range"), from)
			if err != nil {
				res.Body.Close()
				return nil, give(err)
			}
			watchdog.Stop() // it starts with the first read
			body := &watched{body: res.Body, stall: after, watchdog: watchdog, give: give}
			return &answer{body, size, sourceOf(req, res), h.Host}, nil
		}
		res.Body.Close()
		if res.StatusCode == http.StatusUnauthorized && h.Authorizer != nil && !again {
			if err := h.Authorizer.AddResponses(ctx, []*http.Response{res}); err != nil {
				return nil, give(err)
			}
			continue
		}
		if res.StatusCode == http.StatusOK {
			return nil, give(errors.New("it does not send parts of blobs (Range): lazy pulling needs that"))
		}
		if after, _ := backoff.RetryAfter(res, time.Now()); after > 0 {
			return nil, give(&limitedError{res.Status, min(after, longestLimit)})
		}
		return nil, give(fmt.Errorf("it answers %s", res.Status))
	}
}

// sourceOf returns the source of the bytes of a response.
func sourceOf(req *http.Request, res *http.Response) string {
	switch res.Header.Get(readapi.SourceHeader) {
	case readapi.SourceNode:
		return fromNode
	case readapi.SourcePeer:
		return fromPeer
	}
	if req.URL.RawQuery != "" {
		return fromMirror
	}
	return fromRegistry
}

// url is the address of the blob on a host. For mirrors it names the registry, as containerd does.
func (s source) url(h docker.RegistryHost, repository string) string {
	u := url.URL{Scheme: h.Scheme, Host: h.Host, Path: path.Join(h.Path, repository, "blobs", s.digest.String())}
	if name := s.ref.Hostname(); h.Host != name && (name != "docker.io" || h.Host != "registry-1.docker.io") {
		u.RawQuery = url.Values{"ns": {name}}.Encode()
	}
	return u.String()
}

// sizeOf returns the size in a Content-Range, whose first byte must be from.
func sizeOf(header string, from int64) (int64, error) {
	var first, last int64
	var total string
	if _, err := fmt.Sscanf(header, "bytes %d-%d/%s", &first, &last, &total); err != nil || first != from {
		return 0, fmt.Errorf("it sent a range that does not begin at %d: Content-Range %q", from, header)
	}
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil || size <= last {
		return 0, fmt.Errorf("it does not say how large the blob is: Content-Range %q", header)
	}
	return size, nil
}

// stalled is the error of a host that has sent nothing for a time.
type stalled time.Duration

// Error implements error.
func (s stalled) Error() string { return fmt.Sprintf("it has sent nothing for %v", time.Duration(s)) }

// watched is a body whose request is cancelled when nothing arrives.
type watched struct {
	body     io.ReadCloser
	stall    time.Duration
	watchdog *time.Timer
	give     func(error) error
}

// Read implements io.Reader.
func (w *watched) Read(p []byte) (int, error) {
	w.watchdog.Reset(w.stall)
	n, err := w.body.Read(p)
	w.watchdog.Stop()
	if err != nil && err != io.EOF {
		err = w.give(err)
	}
	return n, err
}

// Close implements io.Closer.
func (w *watched) Close() error {
	_ = w.give(nil)
	return w.body.Close()
}

// Where bytes come from.
const (
	fromNode     = "node"
	fromPeer     = "peer"
	fromMirror   = "mirror"
	fromRegistry = "registry"
)
