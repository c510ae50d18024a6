// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"io"
	"net/http"
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
	// A pod that serves has another address, or it could not be told from the service address.
	other := newHTTPPod(t, ok)
	s := shop(t, other.at)
	s.Addr = pod.at // where a woken service answers
	r.set(s)
	// One kept connection stays with one thread of Envoy. Each thread takes over new pods at its own time.
	c := client(t, false)
	ask := func(path, header string) error {
		q, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s%s", s.at(), path), nil)
		if err != nil {
			return err
		}
		if header != "" {
			q.Header.Set(traceparent, header)
		}
		a, err := c.Do(q)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		_, err = io.Copy(io.Discard, a.Body)
		return err
	}
	get(t, c, s.at())
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if err := ask("/", parent); err != nil {
		t.Fatal(err)
	}
	s.Pods = nil
	r.set(s)
	for begin := time.Now(); pod.requests.Load() == 0; {
		if time.Since(begin) > time.Minute {
			t.Fatal("requests still go to the pod that is gone")
		}
		get(t, c, s.at())
	}
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
