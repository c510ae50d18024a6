// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"wangell.loutres.me/internal/testutil/netlab"
)

// eventually waits until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// How a client asks: on a new connection each time, or on one that it keeps.
const (
	newConnections  = false
	keptConnections = true
)

// load is traffic that goes on until stop, and of which no request may fail.
type load struct {
	cancel   context.CancelFunc
	group    sync.WaitGroup
	requests atomic.Int64
	mu       sync.Mutex
	errs     []error
}

// load has all clients ask url, twice in each of the ways, and returns when each had an answer.
func (l *lab) load(t *testing.T, url string, ways ...bool) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	g := &load{cancel: cancel}
	t.Cleanup(func() { cancel(); g.group.Wait() })
	var begun sync.WaitGroup
	for _, c := range l.Clients {
		for _, keep := range append(ways, ways...) {
			begun.Add(1)
			g.group.Go(func() { g.run(ctx, c, keep, url, sync.OnceFunc(begun.Done)) })
		}
	}
	begun.Wait()
	return g
}

func (g *load) run(ctx context.Context, from *netlab.Namespace, keep bool, url string, begun func()) {
	defer begun()
	client := httpClient(from, keep)
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		err := request(client, url)
		g.requests.Add(1)
		begun()
		if err != nil {
			g.mu.Lock()
			g.errs = append(g.errs, fmt.Errorf("client %s, keep-alive %t: %w", from.Host, keep, err))
			g.mu.Unlock()
			return
		}
	}
}

func request(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err = io.Copy(io.Discard, response.Body); err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("answer %s", response.Status)
	}
	return err
}

// goesOn waits until some more requests were answered.
func (g *load) goesOn(t *testing.T) {
	t.Helper()
	enough := g.requests.Load() + 100
	eventually(t, "100 more requests", func() bool { return g.requests.Load() >= enough || g.failed() })
}

func (g *load) failed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.errs) > 0
}

// stop ends the traffic; a request that failed fails the test.
func (g *load) stop(t *testing.T) {
	t.Helper()
	g.cancel()
	g.group.Wait()
	for _, err := range g.errs {
		t.Error("under load:", err)
	}
	t.Logf("%d requests under load", g.requests.Load())
}
