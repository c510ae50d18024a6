// SPDX-License-Identifier: Apache-2.0

// Command server runs in the containers of the end-to-end tests. Its environment controls how it behaves:
//
//	PORT          port to listen on, default 8080
//	BIND          address to listen on, default all
//	MODE          http (default), lines, exit, done, deaf, taken
//	LISTEN_DELAY  delay before it listens, such as 500ms
//	READY_DELAY   time after it listens in which it answers every request with 503
//	STOP_DELAY    time between SIGTERM and its exit
//	STOP          close: at SIGTERM it closes the listening socket at once, and exits when no connection is left; each
//	              answer from then on closes its connection (mode http)
//	VERSION       version in its answers
//	TARGET        host:port that /proxy sends requests to, unless asked for another one (/proxy?target=HOST:PORT)
//
// Mode http answers / with an Answer, /proxy with the answer of TARGET, /resolve?name=N with the addresses of
// a name or the names of an address, /udp?target=HOST:PORT with what becomes of a datagram, and /slow?for=100ms after
// a delay; /hold?bytes=1000000 allocates memory. Mode lines greets each client with an Answer on a line and repeats
// each line, except "reset", which resets the connection, and "close", which closes it; when the client has closed its
// half, the server writes the number of bytes. Mode exit prints a message and exits with status 3, done exits with 0, deaf
// never listens, and taken finds its port in use.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// Answer identifies the client and the server.
type Answer struct {
	Client   string `json:"client"`   // address and port, as the server sees them
	Instance string `json:"instance"` // unique to each process
	Version  string `json:"version"`
}

var instance = rand.Text()

// held is the memory that /hold has allocated.
var held atomic.Pointer[[]byte]

func answer(client net.Addr) Answer { return Answer{client.String(), instance, os.Getenv("VERSION")} }

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
	}()
	<-stop
	fmt.Println("server: asked to stop")
	time.Sleep(duration("STOP_DELAY"))
	if os.Getenv("STOP") == "close" {
		last.close()
	}
}

func run() error {
	port, err := strconv.Atoi(or(os.Getenv("PORT"), "8080"))
	if err != nil {
		return err
	}
	time.Sleep(duration("LISTEN_DELAY"))
	switch mode := os.Getenv("MODE"); mode {
	case "exit":
		fmt.Fprintln(os.Stderr, "server: no configuration: /etc/app.conf is missing")
		os.Exit(3)
	case "done":
		os.Exit(0)
	case "deaf":
		fmt.Println("server: deaf")
		return nil
	case "taken":
		if err := occupy(port); err != nil {
			return err
		}
	case "", "http", "lines":
	default:
		return fmt.Errorf("no mode %q", mode)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("BIND"), strconv.Itoa(port)))
	if err != nil {
		return err
	}
	fmt.Println("server: listening on", l.Addr())
	if os.Getenv("MODE") == "lines" {
		return lines(l)
	}
	return last.serve(l)
}

// occupy binds the port and does not listen, like another program that starts at the same time.
func occupy(port int) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return syscall.Bind(fd, &syscall.SockaddrInet4{Port: port})
}

func pages() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, Answer{r.RemoteAddr, instance, os.Getenv("VERSION")})
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.FormValue("for")); err == nil {
			time.Sleep(d)
		}
		writeJSON(w, Answer{r.RemoteAddr, instance, os.Getenv("VERSION")})
	})
	mux.HandleFunc("/hold", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.FormValue("bytes"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		b := bytes.Repeat([]byte{1}, n)
		held.Store(&b)
		writeJSON(w, Answer{r.RemoteAddr, instance, os.Getenv("VERSION")})
	})
	mux.HandleFunc("/resolve", func(w http.ResponseWriter, r *http.Request) {
		look := net.DefaultResolver.LookupHost
		if _, err := netip.ParseAddr(r.FormValue("name")); err == nil {
			look = net.DefaultResolver.LookupAddr
		}
		found, err := look(r.Context(), r.FormValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		writeJSON(w, found)
	})
	mux.HandleFunc("/proxy", func(w http.ResponseWriter, r *http.Request) {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + cmp.Or(r.FormValue("target"), os.Getenv("TARGET")) + "/")
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer response.Body.Close()
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	})
	mux.HandleFunc("/udp", func(w http.ResponseWriter, r *http.Request) {
		if err := datagram(r.FormValue("target")); err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}
	})
	ready := time.Now().Add(duration("READY_DELAY"))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if time.Now().Before(ready) {
			http.Error(w, "not ready yet", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// datagram sends a datagram, a few times as the kernel limits its rejections to about one a second, and returns once
// there is an answer, or an error.
func datagram(target string) error {
	c, err := net.Dial("udp", target)
	if err != nil {
		return err
	}
	defer c.Close()
	for range 10 {
		if _, err = c.Write([]byte("?")); err != nil {
			return err
		}
		if err = c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err = c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return err
}

func writeJSON(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) }

func lines(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go converse(c.(*net.TCPConn))
	}
}

func converse(c *net.TCPConn) {
	defer c.Close()
	writeJSON(c, answer(c.RemoteAddr()))
	n := 0
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		n += len(line)
		if err != nil {
			if err == io.EOF {
				fmt.Fprintf(c, "%d bytes\n", n)
			}
			return
		}
		switch line {
		case "reset\n":
			_ = c.SetLinger(0)
			return
		case "close\n":
			return
		}
		if _, err := io.WriteString(c, line); err != nil {
			return
		}
	}
}

func duration(name string) time.Duration {
	d, _ := time.ParseDuration(or(os.Getenv(name), "0"))
	return d
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
