// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	"wangell.loutres.me/lab/probe"
	"wangell.loutres.me/lab/report"
)

// tally counts requests and connections by pod.
type tally struct {
	mu          sync.Mutex
	requests    map[string]int
	connections map[net.Conn]string
	took        []float64 // of each request, in milliseconds
	failed      int
	errors      []string
}

// tallyErrors is the number of errors that a tally keeps.
const tallyErrors = 5

func (t *tally) answered(pod string, conn net.Conn, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests[pod]++
	t.connections[conn] = pod
	t.took = append(t.took, float64(took)/float64(time.Millisecond))
}

func (t *tally) lost(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed++
	if len(t.errors) < tallyErrors {
		t.errors = append(t.errors, err.Error())
	}
}

// endpoint is the service that clients ask.
type endpoint struct {
	dial probe.DialFunc
	// address is where they connect to, and host the host name; empty for the address.
	address, host string
	// named is the header of answers that names the pod; empty for Served-By, the name of the pod on Kubernetes.
	named string
	// pods are the names of all pods that may answer.
	pods []string
}

// runPattern runs clients against a service for a time.
func runPattern(ctx context.Context, p Pattern, service endpoint, length time.Duration) Sample {
	t := &tally{requests: map[string]int{}, connections: map[net.Conn]string{}}
	for _, pod := range service.pods {
		t.requests[pod] = 0
	}
	begin := time.Now()
	end := begin.Add(length)
	var all sync.WaitGroup
	for range p.Clients {
		client := newClient(p, service.dial)
		defer client.CloseIdleConnections()
		for range p.Threads {
			if p.OwnConnection {
				client = newClient(p, service.dial)
				defer client.CloseIdleConnections()
			}
			thread := client
			all.Go(func() {
				for ctx.Err() == nil && time.Now().Before(end) {
					began := time.Now()
					pod, conn, err := service.ask(ctx, thread)
					if err == nil {
						t.answered(pod, conn, time.Since(began))
					} else if ctx.Err() == nil {
						t.lost(err)
					}
				}
			})
		}
	}
	all.Wait()
	s := Sample{Pattern: p.Key, Seconds: time.Since(begin).Seconds(), Requests: t.requests,
		Connections: map[string]int{}, Failed: t.failed, Errors: t.errors}
	if len(t.took) > 0 {
		s.P50, s.P99 = report.Percentile(t.took, 50), report.Percentile(t.took, 99)
	}
	for _, pod := range service.pods {
		s.Connections[pod] = 0
	}
	for _, pod := range t.connections {
		s.Connections[pod]++
	}
	return s
}

// newClient returns a client with a pool of at most as many connections as its threads need. Without this limit
// net/http dials another connection whenever one that was just used is not yet back in the pool.
func newClient(p Pattern, dial probe.DialFunc) *http.Client {
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: p.NewConnection, DisableCompression: true}
	switch {
	case p.OwnConnection:
		transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = 1, 1
	case !p.NewConnection:
		transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = p.Threads, p.Threads
	}
	return &http.Client{Timeout: probe.Timeout, Transport: transport}
}

// ask makes a request. It returns the pod that answered and the connection.
func (s endpoint) ask(ctx context.Context, client *http.Client) (pod string, conn net.Conn, err error) {
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { conn = info.Conn }}
	ctx = httptrace.WithClientTrace(ctx, trace)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/", nil)
	if err != nil {
		return "", nil, err
	}
	req.Host = s.host
	resp, err := client.Do(req)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "", nil, err
	}
	named := cmp.Or(s.named, "Served-By")
	pod = resp.Header.Get(named)
	switch {
	case resp.StatusCode != http.StatusOK:
		return "", nil, errors.New("answer " + resp.Status)
	case pod == "":
		return "", nil, errors.New("the answer has no header " + named)
	}
	return pod, conn, nil
}
