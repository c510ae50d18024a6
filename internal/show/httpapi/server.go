// SPDX-License-Identifier: Apache-2.0

// Package httpapi is the local API of a running instance: HTTP and JSON over a unix socket that only root can open.
// Its clients are 'wangell ps', 'logs', 'sleep' and other commands. Package access serves a part of it on a cluster.
//
//	GET  /v1/services                     []controller.Status
//	GET  /v1/broken                       []BrokenFile: manifests with mistakes
//	GET  /v1/pressure                     []controller.Pressure: what is scarce in the gate
//	GET  /v1/wakes?service=NAME           []lifecycle.Waterfall; of all services without NAME
//	POST /v1/sleep?service=NAME           204 once nothing of the service's pods is left
//	POST /v1/wake?service=NAME            204 once it serves
//	POST /v1/hold?service=NAME            controller.Status once it serves; it stays awake until the request ends,
//	                                      which also ends the command with the ID in command=ID
//	POST /v1/restart?service=NAME         Restarted, once new pods serve
//	GET  /v1/stats?service=NAME           []controller.PodUsage; of all services without NAME
//	GET  /v1/logs?service=NAME&container=C&tail=N&follow=true   the output of the pods, as text
//	GET  /v1/events                       controller.Event as JSON lines, from the request on
//	GET  /v1/versions                     {"program": "version"}
//	GET  /healthz                         204 while the instance answers
//	GET  /readyz                          204 if it can wake services, else 503
//	     /dashboard/                      the dashboard, see internal/show/dashboard; /dashboard-actions/ with actions
//
// NAME is namespace/name, or a name alone if that is unambiguous. An error is {"error": "text"}. An error after the
// beginning of a log is in the trailer Wangell-Error.
package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

// closeTimeout bounds the time that Close waits for requests to end.
const closeTimeout = 2 * time.Second

// Config configures a Server.
type Config struct {
	// Path is the path of the socket. A socket that is no longer served is replaced.
	Path     string
	Services Services
	// Broken returns the manifests with mistakes; may be nil.
	Broken func() []BrokenFile
	// Dashboard returns the dashboard, with actions or read-only; may be nil.
	Dashboard func(actions bool) http.Handler
	// Versions returns the versions of the instance's programs, by name; may be nil.
	Versions func(ctx context.Context) map[string]string
	// EndCommand ends a command of a client that is gone in a service, by its ID; may be nil.
	EndCommand func(key v1alpha1.Key, id string)
	// Log may be nil.
	Log *slog.Logger
}

// Server serves the API until Close.
type Server struct {
	cfg    Config
	http   *http.Server
	cancel context.CancelCauseFunc
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
	handler := Handler{
		Of:     func(*http.Request) (Services, error) { return cfg.Services, nil },
		Broken: cfg.Broken, Versions: cfg.Versions, Dashboard: cfg.Dashboard,
		EndCommand: cfg.EndCommand,
	}.Routes()
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &Server{cfg: cfg, cancel: cancel, done: make(chan struct{})}
	s.http = &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10,
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
	s.cancel(http.ErrServerClosed)
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = s.http.Close()
	}
	<-s.done
	return err
}
