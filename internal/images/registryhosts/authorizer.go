// SPDX-License-Identifier: Apache-2.0

package registryhosts

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"golang.org/x/sync/singleflight"
)

// tokenTimeout bounds the request for a token, which continues when its first caller gives up.
const tokenTimeout = 30 * time.Second

// authorizer lets one goroutine at a time use another authorizer for a host and scope.
type authorizer struct {
	docker.Authorizer
	failed func(error) // called with each error; may be nil
	calls  singleflight.Group
}

// Shared returns an authorizer for concurrent use. That of containerd has a data race when a token has expired (it
// writes the end of the new one's validity while others read it), and remembers for ever that its caller gave up
// during a request for a token. Callers for the same host and scope wait for one request here, which continues when one
// of them gives up.
func Shared(inner docker.Authorizer) docker.Authorizer { return newAuthorizer(inner, nil) }

func newAuthorizer(inner docker.Authorizer, failed func(error)) *authorizer {
	return &authorizer{Authorizer: inner, failed: failed}
}

// Authorize implements docker.Authorizer: it sets the header Authorization of a request.
func (a *authorizer) Authorize(ctx context.Context, req *http.Request) error {
	key := req.URL.Host + " " + strings.Join(docker.GetTokenScopes(ctx, nil), " ")
	call := a.calls.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenTimeout)
		defer cancel()
		probe := &http.Request{URL: req.URL, Header: http.Header{}}
		err := a.Authorizer.Authorize(ctx, probe)
		if err != nil && a.failed != nil {
			a.failed(err)
		}
		return probe.Header, err
	})
	select {
	case res := <-call:
		if res.Err != nil {
			return res.Err
		}
		for name, values := range res.Val.(http.Header) {
			req.Header[name] = slices.Clone(values)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
