// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"wangell.loutres.me/internal/show/httpapi"
	"wangell.loutres.me/internal/status"
)

const (
	// writeTimeout is how long a browser may take to accept an update.
	writeTimeout = 10 * time.Second
	// renewTimeout is how long a renewal of a stream's scope may take. Updates wait meanwhile.
	renewTimeout = 5 * time.Second
	// actionHeader is a header that a page of another origin cannot send without a preflight request (CORS).
	actionHeader = "Wangell-Action"
	// policy lets the page load scripts, styles, images and data from its own origin, and nothing else.
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

// Handler serves the page and its data below any path, if http.StripPrefix removes that. A request for the path
// without its final slash must be redirected to that with it. Without actions it is read-only. Streams end with
// Close.
func (d *Dashboard) Handler(actions bool) http.Handler {
	mux := http.NewServeMux()
	for _, a := range assets() {
		mux.Handle("GET "+a.path, a)
	}
	with := func(pattern string, f func(http.ResponseWriter, *http.Request, Scope)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			scope, err := d.cfg.Of(r)
			if err != nil {
				httpapi.Refuse(w, err)
				return
			}
			f(w, r, scope)
		})
	}
	with("GET /api/about", func(w http.ResponseWriter, _ *http.Request, s Scope) {
		answer(w, About{d.cfg.Version, actions, s.Everything()}, nil)
	})
	with("GET "+StreamPath, d.stream)
	with("GET /api/gates", d.gates)
	with("GET /api/connections", d.connections)
	if actions {
		with("POST /api/sleep", d.sleep)
	}
	return secured(mux)
}

// secured sets the headers that keep other pages away, and refuses their requests for data. Browsers say where a
// request comes from (https://www.w3.org/TR/fetch-metadata/); other clients need not.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if strings.HasPrefix(r.URL.Path, "/api/") {
			h.Set("Cache-Control", "no-store")
			if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
				refuse(w, http.StatusForbidden, "requests from other pages are not answered")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// answer writes a value as JSON, or nothing if it is nil, or an error.
func answer(w http.ResponseWriter, v any, err error) {
	switch {
	case err != nil:
		httpapi.Refuse(w, err)
	case v == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // it fails only if the client is gone
	}
}

// refuse answers with an error that has a code.
func refuse(w http.ResponseWriter, code int, text string) {
	httpapi.Refuse(w, &httpapi.Error{Code: code, Text: text})
}

// stream sends server-sent events until the browser leaves or loses its access.
func (d *Dashboard) stream(w http.ResponseWriter, r *http.Request, scope Scope) {
	v, err := d.hub.join(r.FormValue("service"), scope)
	if err != nil {
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer d.hub.leave(v)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // proxies like nginx would hold updates back
	c := http.NewResponseController(w)
	renew := time.NewTicker(d.renewEvery)
	defer renew.Stop()
	stale := v.stale
	for {
		select {
		case <-r.Context().Done():
			return
		case <-stale:
			if err := d.renew(v, r); err != nil {
				stale = nil // the ticker tries again
			}
		case <-renew.C:
			var refused *httpapi.Error
			err := d.renew(v, r)
			if errors.As(err, &refused) && (refused.Code == http.StatusUnauthorized || refused.Code == http.StatusForbidden) {
				return
			}
			stale = v.stale
		case m, ok := <-v.out:
			if !ok {
				return
			}
			_ = c.SetWriteDeadline(time.Now().Add(writeTimeout)) // a transport without deadlines has its own limits
			if _, err := w.Write(m); err != nil || c.Flush() != nil {
				return
			}
		}
	}
}

// renew renews a viewer's scope. If that fails, the viewer keeps its present one.
func (d *Dashboard) renew(v *viewer, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), renewTimeout)
	defer cancel()
	scope, err := d.cfg.Of(r.WithContext(ctx))
	if err == nil {
		d.hub.renew(v, scope)
	}
	return err
}

// gates answers with the state of all gates. If the request names a node, only its gate has counters and interfaces,
// or the first node's if there is no such node: with many nodes, nobody looks at all of them.
func (d *Dashboard) gates(w http.ResponseWriter, r *http.Request, s Scope) {
	if !s.Everything() {
		refuse(w, http.StatusForbidden, "the state of gates is only for users who may see all namespaces")
		return
	}
	gates, err := d.cfg.Source.Gates(r.Context())
	if err == nil && r.URL.Query().Has("detail") {
		gates = detailOf(gates, r.URL.Query().Get("detail"))
	}
	answer(w, gates, err)
}

// detailOf leaves out the counters and interfaces of all gates but one.
func detailOf(gates []status.Gate, node string) []status.Gate {
	at := max(0, slices.IndexFunc(gates, func(g status.Gate) bool { return g.Node == node }))
	out := slices.Clone(gates)
	for i := range out {
		if i != at {
			out[i].Counters, out[i].Interfaces = nil, nil
		}
	}
	return out
}

func (d *Dashboard) connections(w http.ResponseWriter, r *http.Request, s Scope) {
	if !s.Everything() {
		refuse(w, http.StatusForbidden, "the connected clients are only for users who may see all namespaces")
		return
	}
	c, err := d.cfg.Source.Connections(r.Context())
	answer(w, c, err)
}

func (d *Dashboard) sleep(w http.ResponseWriter, r *http.Request, s Scope) {
	if r.Header.Get(actionHeader) == "" {
		refuse(w, http.StatusForbidden, "the header "+actionHeader+" is missing")
		return
	}
	key, err := s.Resolve(r.URL.Query().Get("service"))
	if err == nil {
		err = s.Sleep(r.Context(), key)
	}
	answer(w, nil, err)
}
