// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"
)

// Only requests that wait at the service address are reported, before they are answered.
func TestRequestsOfATraceThatWaitForAPodAreReported(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	answer := make(chan struct{})
	pod := newHTTPPod(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("traceparent") != "" && r.URL.Path == "/slow" {
			<-answer
		}
	})
	s := shop(t, pod.at)
	s.Addr = pod.at // where a woken service answers
	r.set(s)
	ask := func(path, header string) error {
		q, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s%s", s.at(), path), nil)
		if err != nil {
			return err
		}
		if header != "" {
			q.Header.Set(traceparent, header)
		}
		a, err := client(t, false).Do(q)
		if err == nil {
			a.Body.Close()
		}
		return err
	}
	get(t, client(t, false), s.at())
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	// A pod serves, so it would not be told from a request that waits, if the addresses were the same.
	other := newHTTPPod(t, ok)
	s.Pods = []netip.AddrPort{other.at}
	r.set(s)
	if err := ask("/", parent); err != nil {
		t.Fatal(err)
	}
	s.Pods = nil
	r.set(s)
	for _, header := range []string{"", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "x"} {
		if err := ask("/", header); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- ask("/slow", parent) }()
	select {
	case c := <-r.called:
		if c.Service != s.Name || c.Trace.TraceID().String() != "0af7651916cd43dd8448eb211c80319c" ||
			c.Trace.SpanID().String() != "b7ad6b7169203331" || !c.Trace.IsSampled() || !c.Trace.IsRemote() {
			t.Errorf("%+v", c)
		}
	case <-time.After(time.Minute):
		t.Error("the request was not reported")
	}
	close(answer)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := len(r.called); n > 0 {
		t.Errorf("%d more requests were reported", n)
	}
	if log := r.log.String(); log != "" {
		t.Errorf("log: %s", log)
	}
}
