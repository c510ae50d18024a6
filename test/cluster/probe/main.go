// SPDX-License-Identifier: Apache-2.0

// Program probe is the server that the cluster's own tests run in pods. It answers
//
//	/              with its host name and the address of the client
//	/get?url=URL   with the response to a request of its own
//	/lookup?name=N with the addresses from its DNS
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	host, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	http.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s %s\n", host, from)
	})
	http.HandleFunc("/get", func(w http.ResponseWriter, r *http.Request) {
		resp, err := client.Get(r.FormValue("url"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		_, _ = io.Copy(w, resp.Body)
	})
	http.HandleFunc("/lookup", func(w http.ResponseWriter, r *http.Request) {
		addrs, err := net.DefaultResolver.LookupHost(r.Context(), r.FormValue("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		fmt.Fprintln(w, addrs)
	})
	log.Print("probe listens")
	log.Fatal(http.ListenAndServe(":8080", nil))
}
