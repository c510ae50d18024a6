// SPDX-License-Identifier: Apache-2.0

package registryhosts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// registry asks for tokens, and issues them.
type registry struct {
	*httptest.Server
	issued atomic.Int32
	// token answers a request for a token; nil issues one that is valid for a second.
	token atomic.Pointer[func(http.ResponseWriter)]
}

func newRegistry(t *testing.T) *registry {
	r := &registry{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/token" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=%q", r.URL+"/token", "test"))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if answer := r.token.Load(); answer != nil {
			(*answer)(w)
			return
		}
		fmt.Fprintf(w, `{"token": "number-%d", "expires_in": 1}`, r.issued.Add(1))
	}))
	t.Cleanup(r.Close)
	return r
}

// challenged returns the hosts of the registry, whose authorizer has seen that it wants a token.
func (r *registry) challenged(t *testing.T) docker.RegistryHosts {
	return func(string) ([]docker.RegistryHost, error) {
		a := docker.NewDockerAuthorizer(docker.WithAuthClient(r.Client()))
		res, err := r.Client().Do(r.request(t))
		if err != nil {
			return nil, err
		}
		res.Body.Close()
		return []docker.RegistryHost{{Authorizer: a}, {Authorizer: a}, {}}, a.AddResponses(t.Context(), []*http.Response{res})
	}
}

// request returns a request that needs a token.
func (r *registry) request(t *testing.T) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.URL+"/v2/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// scoped is the context of a request for a repository.
func scoped(t *testing.T, repository string) context.Context {
	return docker.WithScope(t.Context(), "repository:"+repository+":pull")
}

// first returns the authorizer of the first host.
func first(t *testing.T, c *Cache) docker.Authorizer {
	hosts, err := c.Hosts("registry")
	if err != nil {
		t.Fatal(err)
	}
	return hosts[0].Authorizer
}

// The race detector sees what containerd's own authorizer does when a token has expired.
func TestTokensExpireDuringConcurrentUse(t *testing.T) {
	t.Parallel()
	r := newRegistry(t)
	a := first(t, New(r.challenged(t)))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for r.issued.Load() < 6 && t.Context().Err() == nil {
				req := r.request(t)
				if err := a.Authorize(scoped(t, fmt.Sprintf("of-%d", i%2)), req); err != nil {
					t.Error(err)
					return
				}
				if !strings.HasPrefix(req.Header.Get("Authorization"), "Bearer number-") {
					t.Errorf("header %v", req.Header)
					return
				}
			}
		})
	}
	all.Wait()
	if n := r.issued.Load(); n > 7 { // two scopes
		t.Errorf("%d tokens", n)
	}
}

// A caller that gives up takes nothing from the others that wait for the same token.
func TestACallerThatGivesUpEndsNoRequestForAToken(t *testing.T) {
	t.Parallel()
	r := newRegistry(t)
	asked, release := make(chan struct{}), make(chan struct{})
	answer := func(w http.ResponseWriter) {
		close(asked)
		<-release
		fmt.Fprint(w, `{"token": "late"}`)
	}
	r.token.Store(&answer)
	a := first(t, New(r.challenged(t)))
	gaveUp := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(scoped(t, "app"))
	failed := make(chan error, 1)
	go func() { failed <- a.Authorize(ctx, r.request(t)) }()
	<-asked
	cancel(gaveUp)
	if err := <-failed; !errors.Is(err, gaveUp) {
		t.Errorf("the caller that gave up: %v", err)
	}
	close(release)
	req := r.request(t)
	if err := a.Authorize(scoped(t, "app"), req); err != nil || req.Header.Get("Authorization") != "Bearer late" {
		t.Errorf("the next caller: %v, %v", req.Header, err)
	}
}

// An error of the registry's token server is not remembered, unless it has refused the client.
func TestAFailedAuthorizerIsForgotten(t *testing.T) {
	t.Parallel()
	for status, forgotten := range map[int]bool{
		http.StatusInternalServerError: true, http.StatusServiceUnavailable: true, http.StatusUnauthorized: false,
		http.StatusForbidden: false,
	} {
		r := newRegistry(t)
		c := New(r.challenged(t))
		answer := func(w http.ResponseWriter) { w.WriteHeader(status) }
		r.token.Store(&answer)
		a := first(t, c)
		if err := a.Authorize(scoped(t, "app"), r.request(t)); err == nil {
			t.Errorf("%d: no error", status)
		}
		r.token.Store(nil)
		if got := first(t, c) != a; got != forgotten {
			t.Errorf("%d: forgotten is %t", status, got)
		}
		err := first(t, c).Authorize(scoped(t, "app"), r.request(t))
		if (err == nil) != forgotten {
			t.Errorf("%d: then %v", status, err)
		}
	}
}

// Settings are read again after lifetime; errors are not remembered; hosts without an authorizer stay so.
func TestHostsAreRememberedForAWhile(t *testing.T) {
	t.Parallel()
	r := newRegistry(t)
	looked, broken := 0, errors.New("settings are broken")
	var fail error
	c := New(func(registry string) ([]docker.RegistryHost, error) {
		looked++
		if fail != nil {
			return nil, fail
		}
		return r.challenged(t)(registry)
	})
	now := time.Now()
	c.now = func() time.Time { return now }
	fail = broken
	if _, err := c.Hosts("a"); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	fail = nil
	for _, registry := range []string{"a", "a", "b", "a"} {
		hosts, err := c.Hosts(registry)
		if err != nil {
			t.Fatal(err)
		}
		if len(hosts) != 3 || hosts[0].Authorizer != hosts[1].Authorizer || hosts[2].Authorizer != nil {
			t.Errorf("hosts %v", hosts)
		}
	}
	if looked != 3 {
		t.Errorf("looked %d times before the end", looked)
	}
	now = now.Add(lifetime)
	if _, err := c.Hosts("a"); err != nil || looked != 4 || len(c.known) != 1 {
		t.Errorf("%v, looked %d times, %d known", err, looked, len(c.known))
	}
}
