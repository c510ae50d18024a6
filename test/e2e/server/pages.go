// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/net/websocket"
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
	mux.Handle("/socket", websocket.Handler(func(c *websocket.Conn) { _, _ = io.Copy(c, c) }))
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
