// SPDX-License-Identifier: Apache-2.0

// Package localapi is the local API of a running instance: HTTP and JSON over a unix socket that only root can open.
// Its clients are 'wangell ps', 'logs', 'sleep' and other commands.
//
//	GET  /v1/services                     []controller.Status
//	GET  /v1/broken                       []BrokenFile: manifests with mistakes
//	GET  /v1/pressure                     []controller.Pressure: what is scarce in the gate
//	GET  /v1/wakes?service=NAME           []lifecycle.Waterfall; of all services without NAME
//	POST /v1/sleep?service=NAME           204 once nothing of the service's pods is left
//	POST /v1/wake?service=NAME            204 once it serves
//	POST /v1/hold?service=NAME            controller.Status once it serves; it stays awake until the request ends
//	POST /v1/restart?service=NAME         Restarted, once new pods serve
//	GET  /v1/stats?service=NAME           []controller.PodUsage; of all services without NAME
//	GET  /v1/logs?service=NAME&tail=N&follow=true   the output of the pods, as text
//	GET  /v1/events                       controller.Event as JSON lines, from now on
//	GET  /v1/versions                     {"program": "version"}
//	GET  /healthz                         204 while the instance answers
//	GET  /readyz                          204 if it can wake services, else 503
//	     /dashboard/                      the dashboard, see internal/dashboard; /dashboard-actions/ with actions
//
// NAME is namespace/name, or a name alone if that is unambiguous. An error is {"error": "text"}. An error after the
// beginning of a log is in the trailer Wangell-Error.
package localapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/lifecycle"
	"wangell.loutres.me/internal/runtime"
)

// errorTrailer is the trailer with an error after the beginning of an answer.
const errorTrailer = "Wangell-Error"

// closeTimeout bounds the time that Close waits for requests to end.
const closeTimeout = 2 * time.Second

// Services is what the API gives access to. A controller.Controller is one.
type Services interface {
	Status() []controller.Status
	Resolve(name string) (runtime.Key, error)
	Pressure() []controller.Pressure
	Wakes(key runtime.Key) []lifecycle.Waterfall
	Sleep(ctx context.Context, key runtime.Key) error
	Logs(ctx context.Context, key runtime.Key, w io.Writer, tail int, follow bool) error
	Subscribe(ctx context.Context) <-chan controller.Event
	Ready() error
}

// Config configures a Server.
type Config struct {
	// Path is the path of the socket. A socket that is no longer served is replaced.
	Path     string
	Services Services
	// Broken returns the manifests with mistakes; may be nil.
	Broken func() []BrokenFile
	// Dashboard returns the dashboard, with actions or only to read; may be nil.
	Dashboard func(actions bool) http.Handler
	// Versions returns the versions of the instance's programs, by name; may be nil.
	Versions func(ctx context.Context) map[string]string
	// Log may be nil.
	Log *slog.Logger
}

// BrokenFile is a manifest, or a folder of manifests, with mistakes. Its services keep their last valid state.
type BrokenFile struct {
	// File is the file as the user named it.
	File string `json:"file"`
	// Errors are its mistakes, with the file, line and field of each.
	Errors []string `json:"errors"`
}

// Server serves the API until Close.
type Server struct {
	cfg    Config
	http   *http.Server
	cancel context.CancelFunc
	done   chan struct{}
}

// Serve starts to serve the API.
func Serve(cfg Config) (*Server, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	listener, err := listen(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("local API: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, cancel: cancel, done: make(chan struct{})}
	s.http = &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			cfg.Log.Error("the local API is no longer served", "path", cfg.Path, "error", err)
		}
	}()
	return s, nil
}

// listen makes the socket. It has mode 0600 from the beginning.
func listen(path string) (net.Listener, error) {
	if _, err := os.Lstat(path); err == nil {
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return nil, fmt.Errorf("%s is served by another process", path)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// The file gets the mode of the unbound socket's inode, without the bits of the umask (unix(7), Linux).
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var chmodErr error
		err := raw.Control(func(fd uintptr) { chmodErr = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmodErr)
	}}
	return lc.Listen(context.Background(), "unix", path)
}

// Close cancels all requests and removes the socket.
func (s *Server) Close() error {
	s.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	<-s.done
	return err
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	get := func(path string, f func(*http.Request) (any, error)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			v, err := f(r)
			answer(w, v, err)
		})
	}
	get("/v1/services", func(*http.Request) (any, error) { return s.cfg.Services.Status(), nil })
	get("/v1/broken", func(*http.Request) (any, error) {
		if s.cfg.Broken == nil {
			return []BrokenFile{}, nil
		}
		return s.cfg.Broken(), nil
	})
	get("/v1/pressure", func(*http.Request) (any, error) {
		return append([]controller.Pressure{}, s.cfg.Services.Pressure()...), nil
	})
	get("/v1/wakes", s.wakes)
	get("/v1/versions", func(r *http.Request) (any, error) {
		if s.cfg.Versions == nil {
			return map[string]string{}, nil
		}
		return s.cfg.Versions(r.Context()), nil
	})
	get("/healthz", func(*http.Request) (any, error) { return nil, nil })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.cfg.Services.Ready(); err != nil {
			refuse(w, http.StatusServiceUnavailable, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("POST /v1/sleep", func(w http.ResponseWriter, r *http.Request) {
		key, err := s.cfg.Services.Resolve(r.FormValue("service"))
		if err == nil {
			err = s.cfg.Services.Sleep(r.Context(), key)
		}
		answer(w, nil, err)
	})
	for pattern, f := range map[string]func(http.ResponseWriter, *http.Request, Services){
		"POST /v1/wake": wake, "POST /v1/hold": hold, "POST /v1/restart": restart, "GET /v1/stats": stats,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { f(w, r, s.cfg.Services) })
	}
	mux.HandleFunc("GET /v1/logs", s.logs)
	mux.HandleFunc("GET /v1/events", s.events)
	if s.cfg.Dashboard != nil {
		for _, actions := range []bool{false, true} {
			prefix := dashboardPath(actions)
			mux.Handle(prefix+"/", http.StripPrefix(prefix, s.cfg.Dashboard(actions)))
		}
	}
	return mux
}

// answer writes a value as JSON, or nothing, or an error.
func answer(w http.ResponseWriter, v any, err error) {
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		refuse(w, http.StatusNotFound, err)
	case err != nil:
		refuse(w, http.StatusInternalServerError, err)
	case v == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // it fails only if the client is gone
	}
}

// errorBody is the JSON form of an error.
type errorBody struct {
	Error string `json:"error"`
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(errorBody{err.Error()})
}

func (s *Server) wakes(r *http.Request) (any, error) {
	key := runtime.Key("")
	if name := r.FormValue("service"); name != "" {
		var err error
		if key, err = s.cfg.Services.Resolve(name); err != nil {
			return nil, err
		}
	}
	if wakes := s.cfg.Services.Wakes(key); wakes != nil {
		return wakes, nil
	}
	return []lifecycle.Waterfall{}, nil
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	tail, err := strconv.Atoi(r.FormValue("tail"))
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("tail: want a number, got %q", r.FormValue("tail")))
		return
	}
	follow, err := strconv.ParseBool(r.FormValue("follow"))
	if err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("follow: want true or false, got %q", r.FormValue("follow")))
		return
	}
	key, err := s.cfg.Services.Resolve(r.FormValue("service"))
	if err != nil {
		answer(w, nil, err)
		return
	}
	out := &flushWriter{w: w}
	w.Header().Set("Trailer", errorTrailer)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	err = s.cfg.Services.Logs(r.Context(), key, out, tail, follow)
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

func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	events := s.cfg.Services.Subscribe(r.Context())
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
