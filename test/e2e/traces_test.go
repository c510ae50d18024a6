// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// traceReceiver is an OTLP receiver over HTTP.
type traceReceiver struct {
	mu    sync.Mutex
	spans map[string]bool // name and parent, as "name traceparent"
}

// receiveTraces starts a receiver on the machine of the lab, to which instances send their traces.
func (l *lab) receiveTraces(t *testing.T) *traceReceiver {
	t.Helper()
	var at net.Listener
	if err := l.Node.Do(func() (err error) { at, err = net.Listen("tcp4", "127.0.0.1:0"); return err }); err != nil {
		t.Fatal(err)
	}
	r := &traceReceiver{spans: map[string]bool{}}
	s := &http.Server{Handler: r}
	go func() { _ = s.Serve(at) }()
	t.Cleanup(func() { s.Close() })
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+at.Addr().String())
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "100") // ms
	return r
}

func (r *traceReceiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	var got collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &got)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range got.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				r.spans[fmt.Sprintf("%s 00-%x-%x-01", s.Name, s.TraceId, s.ParentSpanId)] = true
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

// has reports whether a span with a name and a parent has come.
func (r *traceReceiver) has(name, parent string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.spans[name+" "+parent]
}
