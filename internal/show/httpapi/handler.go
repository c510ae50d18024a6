// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

// Handler answers the requests of the API, over whatever transport they come.
type Handler struct {
	// Of returns the services that the sender of a request has access to. An error refuses the request.
	Of func(*http.Request) (Services, error)
	// Broken returns the manifests with mistakes; may be nil.
	Broken func() []BrokenFile
	// Versions returns the versions of the instance's programs, by name; may be nil.
	Versions func(ctx context.Context) map[string]string
	// EndCommand ends a command of a client that is gone in a service, by its ID; may be nil.
	EndCommand func(key v1alpha1.Key, id string)
	// Dashboard returns the dashboard, with actions or read-only. Of does not guard it; may be nil.
	Dashboard func(actions bool) http.Handler
}

// Routes returns the handler of all paths.
func (h Handler) Routes() http.Handler {
	mux := http.NewServeMux()
	with := func(pattern string, f func(http.ResponseWriter, *http.Request, Services)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			services, err := h.Of(r)
			if err != nil {
				Refuse(w, err)
				return
			}
			f(w, r, services)
		})
	}
	get := func(path string, f func(*http.Request, Services) (any, error)) {
		with("GET "+path, func(w http.ResponseWriter, r *http.Request, s Services) {
			v, err := f(r, s)
			answer(w, v, err)
		})
	}
	get("/v1/services", func(_ *http.Request, s Services) (any, error) {
		return append([]status.Status{}, s.Status()...), nil
	})
	get("/v1/broken", func(*http.Request, Services) (any, error) {
		if h.Broken == nil {
			return []BrokenFile{}, nil
		}
		return h.Broken(), nil
	})
	get("/v1/pressure", func(_ *http.Request, s Services) (any, error) {
		return append([]status.Pressure{}, s.Pressure()...), nil
	})
	get("/v1/wakes", wakes)
	get("/v1/versions", func(r *http.Request, _ Services) (any, error) {
		if h.Versions == nil {
			return map[string]string{}, nil
		}
		return h.Versions(r.Context()), nil
	})
	get("/healthz", func(*http.Request, Services) (any, error) { return nil, nil })
	get("/readyz", func(_ *http.Request, s Services) (any, error) {
		if err := s.Ready(); err != nil {
			return nil, &Error{Code: http.StatusServiceUnavailable, Text: err.Error()}
		}
		return nil, nil
	})
	with("POST /v1/sleep", func(w http.ResponseWriter, r *http.Request, s Services) {
		key, err := s.Resolve(r.FormValue("service"))
		if err == nil {
			err = s.Sleep(r.Context(), key)
		}
		answer(w, nil, err)
	})
	with("POST /v1/traffic", setTraffic)
	with("POST /v1/wake", wake)
	with("POST /v1/hold", hold(h.EndCommand))
	with("POST /v1/restart", restart)
	with("GET /v1/stats", stats)
	with("GET /v1/logs", logs)
	with("GET /v1/events", events)
	if h.Dashboard != nil {
		for _, actions := range []bool{false, true} {
			prefix := dashboardPath(actions)
			mux.Handle(prefix+"/", http.StripPrefix(prefix, h.Dashboard(actions)))
		}
	}
	return mux
}

func wakes(r *http.Request, s Services) (any, error) {
	key := v1alpha1.Key("")
	if name := r.FormValue("service"); name != "" {
		var err error
		if key, err = s.Resolve(name); err != nil {
			return nil, err
		}
	}
	if wakes := s.Wakes(key); wakes != nil {
		return wakes, nil
	}
	return []lifecycle.Waterfall{}, nil
}

func logs(w http.ResponseWriter, r *http.Request, s Services) {
	tail, err := strconv.Atoi(r.FormValue("tail"))
	if err != nil {
		Refuse(w, badRequest("tail: want a number, got %q", r.FormValue("tail")))
		return
	}
	follow, err := strconv.ParseBool(r.FormValue("follow"))
	if err != nil {
		Refuse(w, badRequest("follow: want true or false, got %q", r.FormValue("follow")))
		return
	}
	key, err := s.Resolve(r.FormValue("service"))
	if err != nil {
		answer(w, nil, err)
		return
	}
	out := &flushWriter{w: w}
	w.Header().Set("Trailer", errorTrailer)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	err = s.Logs(r.Context(), key, out,
		runtime.LogOptions{Container: r.FormValue("container"), Tail: tail, Follow: follow})
	switch {
	case err == nil || r.Context().Err() != nil:
	case out.begun:
		w.Header().Set(errorTrailer, strconv.Quote(err.Error()))
	default:
		w.Header().Del("Trailer")
		answer(w, nil, err)
	}
}

// flushWriter sends each write to the client at once.
type flushWriter struct {
	w     http.ResponseWriter
	begun bool
}

func (f *flushWriter) Write(p []byte) (int, error) {
	f.begun = true
	n, err := f.w.Write(p)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

func events(w http.ResponseWriter, r *http.Request, s Services) {
	events := s.Subscribe(r.Context())
	w.Header().Set("Content-Type", "application/jsonl")
	out := &flushWriter{w: w}
	if err := http.NewResponseController(w).Flush(); err != nil { // from here the client misses no event
		return
	}
	lines := json.NewEncoder(out)
	for e := range events {
		if lines.Encode(e) != nil {
			return
		}
	}
}
