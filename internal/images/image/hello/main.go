// SPDX-License-Identifier: Apache-2.0

// Command hello is a small web server for demos, tests and measurements. It answers every request with "Hello from
// Wangell" and the client's address as the server sees it, on the port in $PORT (default 8080). The response header
// Served-By holds the host name, which on Kubernetes is the name of the pod, and Served-At the server's own address.
//
// $STOP selects how the server reacts to SIGTERM and SIGINT:
//
//	now     exits at once (default)
//	serve   keeps listening, closes each connection after its next response, and exits after a second without
//	        connections
//	refuse  stops listening, closes each connection after its next response, and exits with the last connection
//
// serve and refuse exit after 10 seconds in any case.
//
// $WORK (a Go duration, default 0) is the processor time that each answer costs.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	idleTimeout = 5 * time.Minute  // of a connection between two requests
	grace       = 10 * time.Second // at most, from the signal to the exit
	quietTime   = time.Second      // without connections, before STOP=serve exits

	clockThread = 3 // CLOCK_THREAD_CPUTIME_ID of clock_gettime(2)
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

func run() error {
	port := cmp.Or(os.Getenv("PORT"), "8080")
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return fmt.Errorf("listen on port %s: %w", port, err)
	}
	fmt.Println("hello: listening on port " + port)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)

	h := newHello()
	if h.work, err = time.ParseDuration(cmp.Or(os.Getenv("WORK"), "0s")); err != nil {
		return fmt.Errorf("WORK: %w", err)
	}
	server := &http.Server{Handler: h, IdleTimeout: idleTimeout, ReadHeaderTimeout: idleTimeout, ConnState: h.track}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on port %s: %w", port, err)
	case <-signals:
	}
	switch os.Getenv("STOP") {
	case "serve":
		h.drain(quietTime)
	case "refuse":
		if err := listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		h.drain(0)
	}
	fmt.Println("hello: stopped")
	return nil
}

// hello answers requests and counts connections.
type hello struct {
	host     string
	work     time.Duration // processor time of an answer
	draining atomic.Bool
	open     atomic.Int64 // connections
	changed  atomic.Int64 // when a connection last opened or closed: Unix time in nanoseconds
}

func newHello() *hello {
	host, _ := os.Hostname()
	return &hello{host: host}
}

// ServeHTTP implements http.Handler.
func (h *hello) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Served-By", h.host)
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		w.Header().Set("Served-At", at.IP.String())
	}
	if h.draining.Load() {
		w.Header().Set("Connection", "close")
	}
	if h.work > 0 {
		if err := work(h.work); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	fmt.Fprintf(w, "Hello from Wangell\nyou are %s\n", r.RemoteAddr)
}

// work uses processor time, however long it waits for a processor.
func work(d time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin, err := threadTime()
	for err == nil {
		var now time.Duration
		if now, err = threadTime(); now-begin >= d {
			break
		}
		for range 1000 { // about a microsecond
		}
	}
	return err
}

// threadTime returns the processor time of the calling thread.
func threadTime() (time.Duration, error) {
	var t syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockThread, uintptr(unsafe.Pointer(&t)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("reading the thread's clock: %w", errno)
	}
	return time.Duration(t.Nano()), nil
}

// track is an http.Server's ConnState.
func (h *hello) track(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		h.open.Add(1)
	case http.StateClosed:
		h.open.Add(-1)
	default:
		return
	}
	h.changed.Store(time.Now().UnixNano())
}

// drain closes each connection after its next response. It returns once there has been no connection for quiet, or
// after grace.
func (h *hello) drain(quiet time.Duration) {
	h.draining.Store(true)
	h.changed.Store(time.Now().UnixNano())
	for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if h.open.Load() == 0 && time.Now().UnixNano()-h.changed.Load() >= int64(quiet) {
			return
		}
	}
}
