// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"wangell.loutres.me/internal/testutil/netlab"
)

// answer is what the tests' own server tells.
type answer struct{ Client, Instance, Version string }

// client is the address of the client without its port, as the pod saw it.
func (a answer) client() netip.Addr {
	ap, _ := netip.ParseAddrPort(a.Client)
	return ap.Addr().Unmap()
}

// httpClient is an HTTP client in a namespace. Without keep-alive each request has a connection of its own.
func httpClient(from *netlab.Namespace, keepAlive bool) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: from.Dialer().DialContext, DisableKeepAlives: !keepAlive, Proxy: nil,
	}}
}

// ask asks the tests' server who is there, on a connection of its own.
func ask(from *netlab.Namespace, address string) (answer, error) {
	return askBy(httpClient(from, false), address)
}

func askBy(c *http.Client, address string) (a answer, _ error) {
	response, err := c.Get("http://" + address + "/")
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	if response.StatusCode != http.StatusOK {
		return a, fmt.Errorf("answer %s: %s", response.Status, body)
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("answer %q: %w", body, err)
	}
	return a, nil
}

// awaitProxy waits until a node's kube-proxy knows a Service, which is no concern of the product. It tries anew soon: the
// connection tracking keeps a connection as it was begun, so one from before kube-proxy has its rules is never answered.
func awaitProxy(t *testing.T, from *netlab.Namespace, address string) {
	t.Helper()
	c := httpClient(from, false)
	c.Timeout = 3 * time.Second
	eventually(t, from.Name+": kube-proxy knows the Service", func() (bool, string) {
		_, err := askBy(c, address)
		return err == nil, fmt.Sprint(err)
	})
}

// mustAsk is ask for what must work. It tells how long that took.
func mustAsk(t *testing.T, from *netlab.Namespace, address string) (answer, time.Duration) {
	t.Helper()
	begin := time.Now()
	a, err := ask(from, address)
	if err != nil {
		t.Fatalf("from %s: %v", from.Name, err)
	}
	return a, time.Since(begin)
}

// traffic is a client that asks again and again, each time on a new connection, until it is stopped.
type traffic struct {
	stop   chan struct{}
	done   chan struct{}
	asked  int
	errors []error

	mu   sync.Mutex
	seen map[string]int // answers by the server's version
}

// keepAsking begins to ask without a rest.
func keepAsking(from *netlab.Namespace, address string) *traffic {
	return askEvery(5*time.Millisecond, from, address)
}

// askEvery begins to ask, with a pause after each answer.
func askEvery(pause time.Duration, from *netlab.Namespace, address string) *traffic {
	tr := &traffic{stop: make(chan struct{}), done: make(chan struct{}), seen: map[string]int{}}
	go func() {
		defer close(tr.done)
		for {
			select {
			case <-tr.stop:
				return
			case <-time.After(pause):
			}
			a, err := ask(from, address)
			tr.asked++
			if err != nil {
				tr.errors = append(tr.errors, err)
			} else {
				tr.mu.Lock()
				tr.seen[a.Version]++
				tr.mu.Unlock()
			}
		}
	}()
	return tr
}

// answers are how many there were so far, by the server's version.
func (tr *traffic) answers() map[string]int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return maps.Clone(tr.seen)
}

// end stops asking, and fails the test if any request failed or there were none.
func (tr *traffic) end(t *testing.T) {
	t.Helper()
	close(tr.stop)
	<-tr.done
	if tr.asked == 0 {
		t.Error("no request was made")
	}
	if n := len(tr.errors); n > 0 {
		t.Errorf("%d of %d requests failed; the first: %v", n, tr.asked, tr.errors[0])
	}
}
