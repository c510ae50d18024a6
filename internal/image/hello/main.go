// SPDX-License-Identifier: Apache-2.0

// Command hello is a small web server for demos, tests and measurements. It answers every request
// with "Hello from Wangell" and the client's address as the server sees it, on the port named by
// $PORT (default 8080). Header Served-By tells the host, which in Kubernetes is the pod.
//
// $STOP says what it does at SIGTERM:
//
//	now     (default) it ends at once
//	serve   it goes on and closes each connection after its next answer, until there has been none for a second
//	refuse  the same, but it stops listening at once and ends with the last connection
//
// With serve and refuse it ends after 10 seconds in any case.
//
// It speaks just enough HTTP/1.x for curl, ab, wrk and browsers (GET and HEAD without a body,
// keep-alive as the versions define it), because a process that only uses package net starts
// in less time than one with net/http.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of what a client may send: a longer line or more header lines end the connection.
const (
	maxLine    = 4096
	maxHeaders = 64
	idle       = 5 * time.Minute
)

// How long it goes on after SIGTERM at most, and without a connection.
const (
	grace = 10 * time.Second
	quiet = time.Second
)

var (
	host, _  = os.Hostname()
	stopping atomic.Bool
	open     atomic.Int64 // connections
	last     atomic.Int64 // when one was opened or closed, Unix time in nanoseconds
)

func main() {
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		fmt.Fprintf(os.Stderr, "hello: listen on port %s: %v\n", port, err)
		os.Exit(1)
	}
	os.Stdout.WriteString("hello: listening on port " + port + "\n")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go accept(l)
	<-stop
	switch os.Getenv("STOP") {
	case "serve":
		finish(quiet)
	case "refuse":
		l.Close()
		finish(0)
	}
	os.Stdout.WriteString("hello: stopped\n")
}

// finish returns when there has been no connection for so long.
func finish(quiet time.Duration) {
	stopping.Store(true)
	last.Store(time.Now().UnixNano())
	for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if open.Load() == 0 && time.Now().UnixNano()-last.Load() >= int64(quiet) {
			return
		}
	}
}

func accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of descriptors or memory: the client's connection waits in the backlog.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		open.Add(1)
		go serve(c)
	}
}

func serve(c net.Conn) {
	defer func() {
		c.Close()
		last.Store(time.Now().UnixNano())
		open.Add(-1)
	}()
	body := "Hello from Wangell\nyou are " + c.RemoteAddr().String() + "\n"
	r := bufio.NewReaderSize(c, maxLine)
	for {
		_ = c.SetDeadline(time.Now().Add(idle))
		head, keep, ok := request(r)
		if !ok {
			return
		}
		keep = keep && !stopping.Load()
		connection := "close"
		if keep {
			connection = "keep-alive"
		}
		answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nServed-By: %s\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n", host, len(body), connection)
		if !head {
			answer += body
		}
		if _, err := c.Write([]byte(answer)); err != nil || !keep {
			return
		}
	}
}

// request reads one request without a body. ok is false at the end of the connection and for what
// is no such request.
func request(r *bufio.Reader) (head, keep, ok bool) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return false, false, false
	}
	f := strings.Fields(string(line))
	if len(f) != 3 || (f[0] != "GET" && f[0] != "HEAD") || !strings.HasPrefix(f[2], "HTTP/1.") {
		return false, false, false
	}
	head, keep = f[0] == "HEAD", f[2] != "HTTP/1.0"
	for range maxHeaders {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return false, false, false
		}
		name, value, found := strings.Cut(strings.TrimRight(string(line), "\r\n"), ":")
		if !found && name == "" {
			return head, keep, true
		}
		if strings.EqualFold(name, "Connection") {
			switch strings.ToLower(strings.TrimSpace(value)) {
			case "close":
				keep = false
			case "keep-alive":
				keep = true
			}
		}
	}
	return false, false, false
}
