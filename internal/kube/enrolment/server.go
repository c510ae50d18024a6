// SPDX-License-Identifier: Apache-2.0

package enrolment

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"wangell.loutres.me/internal/base/quota"
	"wangell.loutres.me/internal/wire"
)

const (
	requestTimeout = 5 * time.Second  // for all of a request
	answerTimeout  = 15 * time.Second // for the API server's review, and the answer
	logGap         = time.Second      // between two log lines about refusals
)

// Server answers daemons.
type Server struct {
	// Master is the master key of the wire.
	Master wire.Key
	// Node returns the node of a token (Reviewer.Node).
	Node        func(ctx context.Context, token string) (string, error)
	Certificate tls.Certificate
	Log         *slog.Logger
	// Results counts requests by their result (NewResults).
	Results *prometheus.CounterVec

	now    func() time.Time // time.Now unless a test has set it before Serve
	limits limits

	mu     sync.Mutex
	logged time.Time // the last refusal
}

// Results of a request.
const (
	resultOK        = "ok"
	resultMalformed = "malformed"
	resultBusy      = "rate"        // too many requests of one address
	resultToken     = "token"       // refused by the API server: wrong, expired, of another audience
	resultAccount   = "account"     // of another service account, or not bound to a pod
	resultNode      = "node"        // of another node than the request names
	resultAPI       = "unavailable" // the API server did not answer
)

// NewResults returns the counter of a Server.
func NewResults() *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "wangell_enrolments_total", Help: "Requests of daemons for the key of their node, by result.",
	}, []string{"result"})
	for _, r := range []string{
		resultOK, resultMalformed, resultBusy, resultToken, resultAccount, resultNode, resultAPI,
	} {
		v.WithLabelValues(r)
	}
	return v
}

// Serve answers on a listener until ctx ends, and closes it.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if s.now == nil {
		s.now = time.Now
	}
	s.limits = newLimits()
	srv := &http.Server{
		Handler:     http.HandlerFunc(s.handle),
		ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, MaxHeaderBytes: 4 << 10,
		// A map without entries turns HTTP/2 off, whose streams the limits would not see.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
		ErrorLog:     log.New(io.Discard, "", 0), // failed handshakes of strangers
	}
	srv.SetKeepAlivesEnabled(false)
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	err := srv.Serve(tls.NewListener(quota.Listener{Listener: l, Slots: s.limits.connections}, &tls.Config{
		Certificates: []tls.Certificate{s.Certificate}, MinVersion: tls.VersionTLS13,
	}))
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("enrolment of daemons: %w", err)
}

// handle answers a request.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != path || r.Method != http.MethodPost {
		http.NotFound(w, r)
		return
	}
	keys, claimed, err := s.enrol(r)
	status, result := judgement(err)
	s.Results.WithLabelValues(result).Inc()
	a := answer{Keys: keys}
	if err == nil {
		s.Log.Info("daemon enrolled", "node", claimed, "from", r.RemoteAddr)
	} else {
		s.refused(r.RemoteAddr, claimed, result, err)
		a.Error = err.Error()
		if result == resultAPI {
			a.Error = "the API server did not answer" // its text is not for strangers
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the client is gone, and asks again
}

var (
	errBusy = errors.New("too many requests from this address: wait a moment")
	errNode = errors.New("the token is of another node")
)

// enrol returns the keys of the node of a request's token. claimed is the node that the request names.
func (s *Server) enrol(r *http.Request) (keys *Keys, claimed string, err error) {
	if !s.limits.requests.Take(quota.Address(r.RemoteAddr), s.now()) {
		return nil, "", errBusy
	}
	q, err := readRequest(r.Body)
	if err != nil {
		return nil, "", err
	}
	node, err := s.Node(r.Context(), q.Token)
	if err != nil {
		return nil, q.Node, err
	}
	if node != q.Node {
		return nil, q.Node, fmt.Errorf("%w: it is of %q, and the daemon claims %q", errNode, node, q.Node)
	}
	k := KeysOf(s.Master, node)
	return &k, node, nil
}

// judgement returns the HTTP status and the result for an error of enrol.
func judgement(err error) (status int, result string) {
	switch {
	case err == nil:
		return http.StatusOK, resultOK
	case errors.Is(err, errBusy):
		return http.StatusTooManyRequests, resultBusy
	case errors.Is(err, errMalformed):
		return http.StatusBadRequest, resultMalformed
	case errors.Is(err, errToken):
		return http.StatusUnauthorized, resultToken
	case errors.Is(err, errAccount), errors.Is(err, errUnbound):
		return http.StatusForbidden, resultAccount
	case errors.Is(err, errNode):
		return http.StatusForbidden, resultNode
	}
	return http.StatusServiceUnavailable, resultAPI
}

// refused logs a refusal, unless it has logged another one just before.
func (s *Server) refused(from, node, result string, err error) {
	s.mu.Lock()
	now := s.now()
	quiet := now.Sub(s.logged) < logGap
	if !quiet {
		s.logged = now
	}
	s.mu.Unlock()
	if !quiet {
		s.Log.Warn("enrolment refused; further ones are counted but not logged for a second",
			"from", from, "node", node, "result", result, "error", err)
	}
}
