// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/wire"
)

const ms = time.Millisecond

var begin = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)

// waterfall is a wake with three phases after the SYN.
func waterfall(number uint64, result lifecycle.Result) lifecycle.Waterfall {
	w := lifecycle.Waterfall{
		Service: "team/hello", Number: number, Start: begin, Result: result, Parked: 3, Released: 2,
		Phases: []lifecycle.Phase{
			{Name: lifecycle.PhaseSYNSeen},
			{Name: lifecycle.PhaseTold, At: 1 * ms, Took: 1 * ms},
			{Name: lifecycle.PhaseListening, At: 41 * ms, Took: 40 * ms},
			{Name: lifecycle.PhaseFirstByte, At: 43 * ms, Took: 2 * ms},
		},
	}
	if result == lifecycle.ResultFailed {
		w.Reason, w.Phases = "image missing", w.Phases[:2]
	}
	return w
}

// receiver is an OTLP receiver: the gRPC service of OTLP, and the same over HTTP.
type receiver struct {
	collector.UnimplementedTraceServiceServer

	mu       sync.Mutex
	requests []*collector.ExportTraceServiceRequest
}

func (r *receiver) Export(
	_ context.Context, q *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, q)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	var got collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &got)
	}
	if err != nil || q.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(q.URL.Path, err), http.StatusBadRequest)
		return
	}
	answer, _ := r.Export(q.Context(), &got)
	b, _ := proto.Marshal(answer)
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(b)
}

// spans returns all spans that came, and service.name.
func (r *receiver) spans() (all []*tracev1.Span, service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.requests {
		for _, rs := range q.ResourceSpans {
			for _, a := range rs.Resource.Attributes {
				if a.Key == "service.name" {
					service = a.Value.GetStringValue()
				}
			}
			for _, ss := range rs.ScopeSpans {
				all = append(all, ss.Spans...)
			}
		}
	}
	return all, service
}

// overGRPC and overHTTP start a receiver and point the environment at it.
func overGRPC(t *testing.T) *receiver {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r, s := &receiver{}, grpc.NewServer()
	collector.RegisterTraceServiceServer(s, r)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	return r
}

func overHTTP(t *testing.T) *receiver {
	r := &receiver{}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	return r
}

func newExporter(t *testing.T) *Exporter {
	t.Helper()
	e, err := FromEnvironment(t.Context(), "wangell", "v1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func attributeOf(s *tracev1.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			if v := a.Value.GetStringValue(); v != "" {
				return v
			}
			return fmt.Sprint(a.Value.GetIntValue())
		}
	}
	return ""
}

func TestWakesArriveAsSpansOfTheirPhases(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *receiver{"gRPC": overGRPC, "HTTP": overHTTP} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			e := newExporter(t)
			running := waterfall(1, lifecycle.ResultRunning)
			running.Phases = running.Phases[:2]
			e.Put(running) // replaced by the complete one
			e.Put(waterfall(1, lifecycle.ResultWarm))
			if err := e.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans, service := r.spans()
			if service != "wangell" || len(spans) != 4 {
				t.Fatalf("service %q, %d spans: %v", service, len(spans), spans)
			}
			named := map[string]*tracev1.Span{}
			for _, s := range spans {
				named[s.Name] = s
			}
			whole := named["wake"]
			for _, want := range []struct {
				name     string
				from, to time.Duration
			}{
				{"wake", 0, 43 * ms}, {"told", 0, 1 * ms}, {"listening", 1 * ms, 41 * ms}, {"first-byte", 41 * ms, 43 * ms},
			} {
				s := named[want.name]
				from, to := uint64(begin.Add(want.from).UnixNano()), uint64(begin.Add(want.to).UnixNano())
				if s == nil || s.StartTimeUnixNano != from || s.EndTimeUnixNano != to {
					t.Errorf("%s: %v, want %s to %s", want.name, s, want.from, want.to)
					continue
				}
				if s != whole && (!bytes.Equal(s.ParentSpanId, whole.SpanId) || !bytes.Equal(s.TraceId, whole.TraceId)) {
					t.Errorf("%s is not in the span of the wake", want.name)
				}
			}
			for key, want := range map[string]string{
				"wangell.service": "team/hello", "k8s.namespace.name": "team", "wangell.service.name": "hello",
				"wangell.wake.number": "1", "wangell.wake.result": "warm", "wangell.wake.parked": "3", "wangell.wake.released": "2",
			} {
				if got := attributeOf(whole, key); got != want {
					t.Errorf("%s: %q, want %q", key, got, want)
				}
			}
		})
	}
}

func TestFailedWakeIsAnErrorWithItsReason(t *testing.T) {
	r := overGRPC(t)
	t.Setenv("OTEL_SERVICE_NAME", "ours")
	e := newExporter(t)
	e.Put(waterfall(1, lifecycle.ResultFailed))
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans, service := r.spans()
	for _, s := range spans {
		if s.Name == "wake" && (s.Status.GetCode() != tracev1.Status_STATUS_CODE_ERROR ||
			s.Status.GetMessage() != "image missing") {
			t.Errorf("status %v", s.Status)
		}
	}
	if service != "ours" || len(spans) != 2 {
		t.Errorf("service %q, spans %v", service, spans)
	}
}

func TestTracesAreOffWithoutAnEndpoint(t *testing.T) {
	for _, env := range []map[string]string{
		{},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		t.Run(fmt.Sprint(env), func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}
			e := newExporter(t)
			if e != nil {
				t.Fatal("they are on")
			}
			e.Put(waterfall(1, lifecycle.ResultWarm)) // must not panic
			if err := e.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
	if _, err := FromEnvironment(t.Context(), "wangell", "v1", slog.Default()); err == nil ||
		err.Error() != `OTEL_EXPORTER_OTLP_PROTOCOL "http/json": want grpc or http/protobuf` {
		t.Error(err)
	}
}

// Put is called in the loop of the controller, so a receiver that accepts connections and never answers must not be
// felt there: this test ends only if Put never waits.
func TestReceiverThatHangsHoldsNoWakeUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://"+l.Addr().String())
	e := newExporter(t)
	for i := range uint64(100_000) {
		e.Put(waterfall(i, lifecycle.ResultWarm))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
	defer cancel()
	if err := e.Close(ctx); err == nil {
		t.Error("it claims to have sent them")
	}
}

func TestWakeIsPartOfTheTraceOfTheFirstRequestThatWaits(t *testing.T) {
	for name, flags := range map[string]uint8{"recorded": 1, "not recorded": 0} {
		t.Run(name, func(t *testing.T) {
			r := overHTTP(t)
			e := newExporter(t)
			caller := wire.Caller{TraceID: [16]byte{1, 15: 2}, SpanID: [8]byte{3, 7: 4}, Flags: flags}
			e.Join("team/hello", caller) // no wake of it is known yet
			e.Put(waterfall(1, lifecycle.ResultWarm))
			e.Put(waterfall(2, lifecycle.ResultRunning))
			e.Join("team/other", wire.Caller{TraceID: [16]byte{9}, SpanID: [8]byte{9}, Flags: 1})
			e.Join("team/hello", caller)
			e.Join("team/hello", wire.Caller{TraceID: [16]byte{8}, SpanID: [8]byte{8}, Flags: 1})
			e.Put(waterfall(2, lifecycle.ResultWarm))
			if err := e.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans, _ := r.spans()
			for _, s := range spans {
				joined := bytes.Equal(s.TraceId, caller.TraceID[:])
				second := s.Name != "wake" || attributeOf(s, "wangell.wake.number") == "2"
				switch {
				case s.Name != "wake":
				case second && flags == 1 && !(joined && bytes.Equal(s.ParentSpanId, caller.SpanID[:])):
					t.Errorf("the span of the wake is not in that of its caller: %v", s)
				case second && flags == 0 && (joined || len(s.ParentSpanId) > 0 || len(s.Links) != 1 ||
					!bytes.Equal(s.Links[0].TraceId, caller.TraceID[:])):
					t.Errorf("the span of the wake has no link to that of its caller, or is in it: %v", s)
				case !second && (joined || len(s.Links) > 0):
					t.Errorf("the wake before belongs to the caller: %v", s)
				}
			}
			if len(spans) != 8 {
				t.Errorf("%d spans", len(spans))
			}
		})
	}
}

func TestWakesAreSentWhenNothingMoreIsToCome(t *testing.T) {
	p := pending{}
	put := func(w lifecycle.Waterfall) bool { _, complete := p.put(w, begin); return complete }
	silent := waterfall(1, lifecycle.ResultWarm)
	silent.Phases = silent.Phases[:3] // the pod listens, and says nothing
	if put(silent) || len(p.due(begin.Add(settle-1), false)) != 0 {
		t.Error("it is complete before its first byte could come")
	}
	if got := p.due(begin.Add(settle), false); len(got) != 1 || len(p) != 0 {
		t.Errorf("%v are due, %v are left", got, p)
	}
	if put(waterfall(2, lifecycle.ResultWarm)) || len(p.due(begin.Add(callerWait-1), false)) != 0 ||
		len(p.due(begin.Add(callerWait), false)) != 1 {
		t.Error("a wake that is complete does not wait for its caller, or longer")
	}
	running := silent
	running.Result = lifecycle.ResultRunning
	if put(running) || len(p.due(begin.Add(10*settle), false)) != 0 {
		t.Error("a wake in progress is complete")
	}
	if !put(waterfall(1, lifecycle.ResultFailed)) || len(p) != 0 {
		t.Error("a failed wake is not complete")
	}
	for i := range uint64(maxPending) {
		running.Number = i
		if put(running) {
			t.Fatalf("%d are too many", i)
		}
	}
	running.Number = maxPending
	if !put(running) || len(p) != maxPending {
		t.Errorf("%d wakes are kept", len(p))
	}
}
