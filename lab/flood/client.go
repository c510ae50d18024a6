// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
	"wangell.loutres.me/test/testutil/netlab"
)

// maxErrors is the number of errors that are kept of each kind of requests.
const maxErrors = 5

// requests collects Requests.
type requests struct {
	mu sync.Mutex
	r  Requests
}

// one makes a request.
func (c *requests) one(ctx context.Context, from *netlab.Namespace, to netip.AddrPort) {
	c.ask(ctx, from, to.String(), to.String())
}

// ask makes a request for a host name.
func (c *requests) ask(ctx context.Context, from *netlab.Namespace, address, host string) {
	t, err := probe.Request(context.WithoutCancel(ctx), from.Dialer().DialContext, address, host)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.r.Times = append(c.r.Times, report.Milliseconds(t.Done))
		return
	}
	c.r.Failed++
	if len(c.r.Errors) < maxErrors {
		c.r.Errors = append(c.r.Errors, err.Error())
	}
}

// requestPause is the pause between two requests of a client.
const requestPause = 20 * time.Millisecond

// repeat makes requests one after another until ctx ends, at least one.
func (c *requests) repeat(ctx context.Context, from *netlab.Namespace, to netip.AddrPort) {
	c.repeatFor(ctx, from, to.String(), to.String())
}

// repeatFor is repeat for a host name.
func (c *requests) repeatFor(ctx context.Context, from *netlab.Namespace, address, host string) {
	for {
		c.ask(ctx, from, address, host)
		select {
		case <-time.After(requestPause):
		case <-ctx.Done():
			return
		}
	}
}
