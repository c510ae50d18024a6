// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"

	"wangell.loutres.me/internal/base/quota"
	"wangell.loutres.me/internal/show/httpapi"
)

// Limits of the load that users can cause.
const (
	maxOfUser     = 32 // requests of one user at a time, streams among them
	maxBoards     = 8  // dashboards of one user, of the 64 that there may be
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
	maxBody       = 64 << 10
)

// Limits of the TokenReviews that strangers can cause: of a client, which the API server names without proof; of the
// address that has connected, which is the API server's for people; and of all. One stranger leaves others half of what
// all may have.
var (
	clientReviews = quota.Rate{Burst: 25, Pause: time.Second / 5}
	peerReviews   = quota.Rate{Burst: 100, Pause: time.Second / 20}
	allReviews    = quota.Rate{Burst: 200, Pause: time.Second / 40}
)

// sources is the number of buckets for addresses.
const sources = 1024

// Server serves the API to people.
type Server struct {
	cfg        Config
	identities identities
	rights     rights

	// recheckEvery is the interval at which the user of a lasting request is checked again.
	recheckEvery time.Duration

	requests, streams *quota.Slots[string] // by user

	boards boards
}

// New returns a server.
func New(cfg Config) *Server {
	return &Server{
		cfg: cfg, recheckEvery: time.Minute,
		requests: quota.NewSlots[string](maxOfUser, math.MaxInt), streams: quota.NewSlots[string](maxBoards, math.MaxInt),
		identities: identities{
			api: cfg.API, now: time.Now,
			clients: quota.NewSources(sources, clientReviews, quota.Rate{}),
			peers:   quota.NewSources(sources, peerReviews, allReviews),
		},
		rights: rights{api: cfg.API, now: time.Now},
	}
}

// userKey is the key of a request's user in its context.
type userKey struct{}

// guard admits requests of authenticated users, within the limits.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		user, err := s.identities.of(r)
		if err == nil && !s.requests.Take(user.Username) {
			err = errLimit
		}
		if err != nil {
			w.Header().Set("Connection", "close") // strangers hold no connection
			httpapi.Refuse(w, err)
			return
		}
		defer s.requests.Give(user.Username)
		ctx, cancel := context.WithCancel(context.WithValue(r.Context(), userKey{}, user))
		defer cancel()
		defer s.recheck(r, cancel)()
		if r.Method != http.MethodGet {
			s.cfg.Log.Info("request of a user", "user", user.Username, "method", r.Method, "path", r.URL.Path,
				"service", r.FormValue("service"))
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// recheck cancels a lasting request, such as a stream, once its user is no longer accepted. An API server that does
// not answer cancels nothing.
func (s *Server) recheck(r *http.Request, cancel context.CancelFunc) (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(s.recheckEvery)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			var refused *httpapi.Error
			if _, err := s.identities.of(r); errors.As(err, &refused) && refused.Code == http.StatusUnauthorized {
				cancel()
				return
			}
		}
	}()
	return func() { close(done) }
}

// scoped returns the access of a request's user.
func (s *Server) scoped(r *http.Request) (*scoped, error) {
	user, ok := r.Context().Value(userKey{}).(*authenticationv1.UserInfo)
	if !ok {
		return nil, unauthorized("the request has no user")
	}
	services := s.cfg.Services()
	if services == nil {
		return nil, errNotLeading
	}
	return newScoped(r.Context(), services, user, &s.rights, r.FormValue("namespace"))
}

// errNotLeading is the answer of a controller that has no services.
var errNotLeading = &httpapi.Error{
	Code: http.StatusServiceUnavailable, Text: "this controller no longer leads: try again in a moment",
}

// services returns what scoped does, for package httpapi.
func (s *Server) services(r *http.Request) (httpapi.Services, error) {
	scope, err := s.scoped(r)
	if err != nil {
		return nil, err // not a nil *scoped
	}
	return scope, nil
}
