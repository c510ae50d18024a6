// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync"
	"time"
)

// tally counts requests and connections by pod.
type tally struct {
	mu          sync.Mutex
	requests    map[string]int
	connections map[net.Conn]string
	failed      int
	errors      []string
}

// tallyErrors is how many errors a tally keeps.
const tallyErrors = 5

func (t *tally) answered(pod string, conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.requests[pod]++
	t.connections[conn] = pod
}

func (t *tally) lost(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed++
	if len(t.errors) < tallyErrors {
		t.errors = append(t.errors, err.Error())
	}
}

// runPattern has clients ask a service for a time; pods are the names of those that may answer.
func runPattern(ctx context.Context, p BalancePattern, dial dialFunc, address string, pods []string, length time.Duration) BalanceSample {
	t := &tally{requests: map[string]int{}, connections: map[net.Conn]string{}}
	for _, pod := range pods {
		t.requests[pod] = 0
	}
	begin := time.Now()
	end := begin.Add(length)
	var all sync.WaitGroup
	for range p.Clients {
		client := patternClient(p, dial)
		defer client.CloseIdleConnections()
		for range p.Threads {
			if p.OwnConnection {
				client = patternClient(p, dial)
				defer client.CloseIdleConnections()
			}
			thread := client
			all.Go(func() {
				for ctx.Err() == nil && time.Now().Before(end) {
					pod, conn, err := ask(ctx, thread, address)
					if err == nil {
						t.answered(pod, conn)
					} else if ctx.Err() == nil {
						t.lost(err)
					}
				}
			})
		}
	}
	all.Wait()
	s := BalanceSample{Pattern: p.Key, Seconds: time.Since(begin).Seconds(), Requests: t.requests, Connections: map[string]int{}, Failed: t.failed, Errors: t.errors}
	for _, pod := range pods {
		s.Connections[pod] = 0
	}
	for _, pod := range t.connections {
		s.Connections[pod]++
	}
	return s
}

// patternClient is a client with a pool of as many connections as its threads need. It never has more: net/http would
// dial another whenever a connection that was just used is not yet back in the pool.
func patternClient(p BalancePattern, dial dialFunc) *http.Client {
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: p.NewConnection, DisableCompression: true}
	switch {
	case p.OwnConnection:
		transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = 1, 1
	case !p.NewConnection:
		transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = p.Threads, p.Threads
	}
	return &http.Client{Timeout: requestTimeout, Transport: transport}
}

// ask makes a request and tells which pod answered, over which connection.
func ask(ctx context.Context, client *http.Client, address string) (pod string, conn net.Conn, err error) {
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { conn = info.Conn }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace), http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "", nil, err
	}
	pod = resp.Header.Get("Served-By")
	switch {
	case resp.StatusCode != http.StatusOK:
		return "", nil, errors.New("answer " + resp.Status)
	case pod == "":
		return "", nil, errors.New("the answer does not tell which pod it is from")
	}
	return pod, conn, nil
}

func (s BalanceSample) perSecond() float64 {
	n := 0
	for _, r := range s.Requests {
		n += r
	}
	return float64(n) / s.Seconds
}

// busiest is the greatest of some counts over their mean; 1 if all are equal, and if all are zero.
func busiest(counts map[string]int) float64 {
	sum, most := 0, 0
	for _, n := range counts {
		sum, most = sum+n, max(most, n)
	}
	if sum == 0 {
		return 1
	}
	return float64(most) * float64(len(counts)) / float64(sum)
}

// sorted returns counts, the greatest first.
func sorted(counts map[string]int) []int {
	var out []int
	for _, n := range counts {
		out = append(out, n)
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out
}
