// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/test/testutil/netlab"
)

// Client is one client of a Load.
type Client struct {
	From *netlab.Namespace
	// Keep has all requests use one connection instead of a new one each.
	Keep bool
	// Pause is the time between an answer and the next request.
	Pause time.Duration
}

// Load is a number of clients that send requests to the tests' own server until Stop. No request may fail.
type Load struct {
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu       sync.Mutex
	requests int
	failed   int
	first    error          // of the failures
	versions map[string]int // answers by the server's version
}

// StartLoad starts the clients and returns once each of them has had an answer, or an error.
func StartLoad(t testing.TB, address string, clients ...Client) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{cancel: cancel, versions: map[string]int{}}
	t.Cleanup(func() { cancel(); l.group.Wait() })
	var begun sync.WaitGroup
	for _, c := range clients {
		begun.Add(1)
		l.group.Go(func() { l.run(ctx, c, address, sync.OnceFunc(begun.Done)) })
	}
	begun.Wait()
	return l
}

func (l *Load) run(ctx context.Context, c Client, address string, begun func()) {
	defer begun()
	client := HTTPClient(c.From, c.Keep)
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		a, err := AskBy(client, address)
		l.count(a, err, c)
		begun()
		if c.Pause > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(c.Pause):
			}
		}
	}
}

func (l *Load) count(a Answer, err error, c Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	if err == nil {
		l.versions[a.Version]++
		return
	}
	l.failed++
	if l.first == nil {
		l.first = fmt.Errorf("client %s, keep-alive %t: %w", c.From.Name, c.Keep, err)
	}
}

// Requests returns the number of requests so far, and how many of them failed.
func (l *Load) Requests() (n, failed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.requests, l.failed
}

// Versions returns the number of answers so far by the server's version.
func (l *Load) Versions() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.versions)
}

// GoesOn waits until some more requests were answered.
func (l *Load) GoesOn(t testing.TB) {
	t.Helper()
	const more = 100
	begin, _ := l.Requests()
	Eventually(t, fmt.Sprintf("%d more requests", more), func() (bool, string) {
		n, failed := l.Requests()
		return n >= begin+more || failed > 0, fmt.Sprintf("%d", n-begin)
	})
}

// Stop ends the load. The test fails if a request failed.
func (l *Load) Stop(t testing.TB) {
	t.Helper()
	l.cancel()
	l.group.Wait()
	if l.failed > 0 {
		t.Errorf("under load, %d of %d requests failed; the first: %v", l.failed, l.requests, l.first)
	}
	t.Logf("%d requests under load", l.requests)
}
