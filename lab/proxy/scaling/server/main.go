// SPDX-License-Identifier: Apache-2.0

// Command server is the web server of the experiment on alternating load. It answers every request on port 8080
// after $DELAY (a Go duration, default 0), as a server that waits for a database does. At SIGTERM it exits at once
// and cuts off what it has not answered.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	delay, err := time.ParseDuration(os.Getenv("DELAY"))
	if err != nil && os.Getenv("DELAY") != "" {
		fmt.Fprintf(os.Stderr, "server: DELAY: %v\n", err)
		os.Exit(2)
	}
	host, _ := os.Hostname()
	answer := func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(delay)
		w.Header().Set("Served-By", host)
		fmt.Fprintln(w, "answered")
	}
	// A process with ID 1 ignores SIGTERM by default.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		os.Exit(0)
	}()
	err = http.ListenAndServe(":8080", http.HandlerFunc(answer))
	fmt.Fprintf(os.Stderr, "server: %v\n", err)
	os.Exit(1)
}
