// SPDX-License-Identifier: Apache-2.0

// Package traces sends wakes as OpenTelemetry traces: a span for the wake, and in it one for each phase. It is set up
// by the standard environment variables (OpenTelemetry specification, "OTLP exporter"), and off without them.
package traces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/wire"
)

const (
	// queued bounds the news of wakes that wait for the exporter's goroutine. Further news are dropped.
	queued = 1024
	// sweepEvery is the interval of looks for complete wakes.
	sweepEvery = time.Second
	// warnEvery is the time between two log lines about failures to send.
	warnEvery = time.Minute
)

// Exporter sends wakes. A nil one does nothing.
type Exporter struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	log      *slog.Logger
	news     chan news
	dropped  atomic.Uint64

	stop context.CancelFunc
	done chan struct{}
}

// FromEnvironment returns an exporter for the endpoint in $OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
// $OTEL_EXPORTER_OTLP_ENDPOINT; nil if there is none, or if traces are turned off by $OTEL_SDK_DISABLED or
// $OTEL_TRACES_EXPORTER. service is the value of service.name unless the environment has another one. It does not
// connect yet, and an endpoint that does not answer is no error.
func FromEnvironment(ctx context.Context, service, version string, log *slog.Logger) (*Exporter, error) {
	if of("ENDPOINT") == "" || os.Getenv("OTEL_SDK_DISABLED") == "true" || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return nil, nil
	}
	client, err := newClient(of("PROTOCOL"))
	if err != nil {
		return nil, err
	}
	limited := &limitedLog{log: log}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(limited.warn))
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("traces: %w: check the variables OTEL_EXPORTER_OTLP_*", err)
	}
	// Later attributes win, so the environment does.
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.version", version),
	), resource.WithFromEnv())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("traces: %w: check OTEL_RESOURCE_ATTRIBUTES", err), exporter.Shutdown(ctx))
	}
	// The batch processor drops spans that exceed its queue ($OTEL_BSP_MAX_QUEUE_SIZE, 2048), and never blocks.
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithBatcher(exporter))
	e := &Exporter{
		provider: provider, tracer: provider.Tracer("wangell.loutres.me/internal/controller/traces"), log: log,
		news: make(chan news, queued), done: make(chan struct{}),
	}
	ctx, e.stop = context.WithCancel(context.WithoutCancel(ctx))
	go e.run(ctx)
	return e, nil
}

// of returns an environment variable of OTLP: that of traces, or else that of all signals.
func of(name string) string {
	return cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_"+name), os.Getenv("OTEL_EXPORTER_OTLP_"+name))
}

// newClient returns a client for a protocol, which reads its other variables itself.
func newClient(protocol string) (otlptrace.Client, error) {
	switch protocol {
	case "grpc":
		return otlptracegrpc.NewClient(), nil
	case "", "http/protobuf":
		return otlptracehttp.NewClient(), nil
	}
	return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL %q: want grpc or http/protobuf", protocol)
}

// Put records the news of a wake. It never blocks.
func (e *Exporter) Put(w lifecycle.Waterfall) {
	if e == nil {
		return
	}
	e.take(news{wake: w})
}

// Join makes the wake of a service that is in progress, or has just ended, part of the trace of a request that has
// waited for it. The first one counts. If the client does not record its span, the wake keeps a trace of its own, with
// a link. Join never blocks.
func (e *Exporter) Join(service v1alpha1.Key, c wire.Caller) {
	if e == nil {
		return
	}
	e.take(news{caller: trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: c.TraceID, SpanID: c.SpanID, TraceFlags: trace.TraceFlags(c.Flags), Remote: true,
	}), of: string(service)})
}

// news is the news of a wake, or the caller of the latest wake of a service.
type news struct {
	wake   lifecycle.Waterfall
	caller trace.SpanContext
	of     string
}

func (e *Exporter) take(n news) {
	select {
	case e.news <- n:
	default:
		e.dropped.Add(1)
	}
}

// Close sends what there is until ctx ends.
func (e *Exporter) Close(ctx context.Context) error {
	if e == nil {
		return nil
	}
	e.stop()
	<-e.done
	return e.provider.Shutdown(ctx)
}

// run sends wakes as they become complete, and all others at the end.
func (e *Exporter) run(ctx context.Context) {
	defer close(e.done)
	p := pending{}
	send := func(all []unfinished) {
		for _, w := range all {
			e.send(w)
		}
	}
	handle := func(n news) {
		if n.of != "" {
			p.join(n.of, n.caller)
		} else if u, complete := p.put(n.wake, time.Now()); complete {
			e.send(u)
		}
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	limited := &limitedLog{log: e.log}
	for {
		select {
		case n := <-e.news:
			handle(n)
		case now := <-tick.C:
			send(p.due(now, false))
			if n := e.dropped.Swap(0); n > 0 {
				limited.warn(fmt.Errorf("news of %d wakes were dropped: there are too many wakes", n))
			}
		case <-ctx.Done():
			for len(e.news) > 0 {
				handle(<-e.news)
			}
			send(p.due(time.Now(), true))
			return
		}
	}
}

// send makes the spans of a wake.
func (e *Exporter) send(w unfinished) {
	key := attribute.String("wangell.service", w.Service)
	ctx, options := context.Background(), []trace.SpanStartOption{trace.WithTimestamp(w.Start)}
	switch {
	case w.caller.IsSampled():
		ctx = trace.ContextWithRemoteSpanContext(ctx, w.caller)
	case w.caller.IsValid():
		options = append(options, trace.WithLinks(trace.Link{SpanContext: w.caller}))
	}
	ctx, whole := e.tracer.Start(ctx, "wake", append(options, trace.WithAttributes(
		append(nameAttributes(w.Service), key,
			attribute.Int64("wangell.wake.number", int64(w.Number)), //nolint:gosec // counts wakes
			attribute.String("wangell.wake.result", string(w.Result)),
			attribute.Int64("wangell.wake.parked", int64(w.Parked)),
			attribute.Int64("wangell.wake.released", int64(w.Released)),
		)...))...)
	for _, p := range w.Phases {
		if p.Name == lifecycle.PhaseSYNSeen {
			continue // the beginning; it takes no time
		}
		_, span := e.tracer.Start(ctx, string(p.Name), trace.WithTimestamp(w.Start.Add(p.At-p.Took)),
			trace.WithAttributes(key))
		span.End(trace.WithTimestamp(w.Start.Add(p.At)))
	}
	if w.Result == lifecycle.ResultFailed {
		whole.SetStatus(codes.Error, w.Reason)
	} else if w.Reason != "" {
		whole.SetAttributes(attribute.String("wangell.wake.reason", w.Reason))
	}
	whole.End(trace.WithTimestamp(w.Start.Add(w.Total())))
}

// limitedLog logs at most one warning each warnEvery.
type limitedLog struct {
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
}

func (l *limitedLog) warn(err error) {
	l.mu.Lock()
	now := time.Now()
	quiet := !l.last.IsZero() && now.Sub(l.last) < warnEvery
	if !quiet {
		l.last = now
	}
	l.mu.Unlock()
	if !quiet {
		l.log.Warn("traces of wakes are not sent; further messages follow once a minute", "error", err)
	}
}
