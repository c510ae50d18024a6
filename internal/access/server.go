// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/time/rate"

	"wangell.loutres.me/internal/dashboard"
	"wangell.loutres.me/internal/localapi"
)

// Limits of the load that users can cause.
const (
	maxOfUser      = 32 // requests of one user at a time, streams among them
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxHeader      = 32 << 10
	maxBody        = 64 << 10
	reviewsPerSec  = 20 // of tokens
	reviewsAtFirst = 100
)

// Services provides what users have access to. A controller.Controller is one.
type Services interface {
	localapi.Services
	dashboard.Source
}

// Config configures a Server.
type Config struct {
	// API reviews tokens and rights.
	API kubernetes.Interface
	// Certificate is the one whose fingerprint the leader's Lease has.
	Certificate tls.Certificate
	// Services returns the services; nil while this process does not lead.
	Services func() Services
	// Version is that of this program, as the dashboard shows it.
	Version string
	// Versions returns the versions of programs, by name; may be nil.
	Versions func(context.Context) map[string]string
	Log      *slog.Logger
}

// Server serves the API to people.
type Server struct {
	cfg        Config
	identities identities
	rights     rights

	// recheckEvery is the interval at which the user of a lasting request is checked again.
	recheckEvery time.Duration

	mu   sync.Mutex
	busy map[string]int // requests, by user

	boards boards
}

// New returns a server.
func New(cfg Config) *Server {
	s := &Server{
		cfg: cfg, busy: map[string]int{}, recheckEvery: time.Minute,
		identities: identities{
			api: cfg.API, now: time.Now, reviews: rate.NewLimiter(reviewsPerSec, reviewsAtFirst),
		},
		rights: rights{api: cfg.API, now: time.Now},
	}
	s.boards.make = s.newDashboard
	return s
}

// Serve serves on a listener, with TLS, until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		TLSConfig: &tls.Config{
			Certificates: []tls.Certificate{s.cfg.Certificate}, MinVersion: tls.VersionTLS13,
			ClientAuth: tls.RequestClientCert, // identities verifies it, if there is no token
		},
		// A map without entries turns HTTP/2 off, whose streams the limits of connections would not see.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		BaseContext:  func(net.Listener) context.Context { return ctx },
		ErrorLog:     slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug), // strangers cause these errors
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	defer s.boards.close()
	err := srv.ServeTLS(l, "", "")
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("API for people: %w", err)
}

// handler returns the handler of all requests.
func (s *Server) handler() http.Handler {
	return s.guard(localapi.Handler{
		Of: s.services, Versions: s.cfg.Versions, Dashboard: s.dashboard,
	}.Routes())
}

// userKey is the key of a request's user in its context.
type userKey struct{}

// guard admits requests of authenticated users, within the limits.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		user, err := s.identities.of(r)
		if err == nil && !s.begin(user.Username) {
			err = errLimit
		}
		if err != nil {
			w.Header().Set("Connection", "close") // strangers hold no connection
			localapi.Refuse(w, err)
			return
		}
		defer s.end(user.Username)
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
			var refused *localapi.Error
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
var errNotLeading = &localapi.Error{
	Code: http.StatusServiceUnavailable, Text: "this controller no longer leads: try again in a moment",
}

// services returns what scoped does, for package localapi.
func (s *Server) services(r *http.Request) (localapi.Services, error) {
	scope, err := s.scoped(r)
	if err != nil {
		return nil, err // not a nil *scoped
	}
	return scope, nil
}

// begin reports whether a user may have another request. end ends it.
func (s *Server) begin(user string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[user] >= maxOfUser {
		return false
	}
	s.busy[user]++
	return true
}

func (s *Server) end(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy[user]--; s.busy[user] == 0 {
		delete(s.busy, user)
	}
}
