// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/controller"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/status"
)

var _ Services = (*controller.Controller)(nil)

// fake has one service, default/redis.
type fake struct {
	ready  error
	events chan status.Event
	slept  atomic.Int32
	held   atomic.Int32
	logs   func(ctx context.Context, w io.Writer) error
}

func (f *fake) Status() []status.Status {
	return []status.Status{{
		Service: v1alpha1.WangellService{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "redis"},
			Spec:       v1alpha1.WangellServiceSpec{Image: "redis:7", Port: 6379},
			Status: v1alpha1.WangellServiceStatus{State: "Warm", Replicas: 1,
				LatestRequest: &metav1.Time{Time: time.Unix(1e9, 0)}},
		},
		Pods:    []status.Pod{{ID: "redis-1", State: "serving"}, {State: "starting"}},
		Traffic: status.Traffic{NewFlows: 3},
	}}
}

func (f *fake) Resolve(name string) (v1alpha1.Key, error) {
	if name != "redis" && name != "default/redis" {
		return "", fmt.Errorf("service %q: %w", name, runtime.ErrNotFound)
	}
	return "default/redis", nil
}

func (f *fake) Pressure() []status.Pressure {
	return []status.Pressure{{Reason: v1alpha1.EventTableAlmostFull, Message: "full"}}
}

func (f *fake) Wakes(k v1alpha1.Key) []lifecycle.Waterfall {
	if k != "" {
		return nil
	}
	return []lifecycle.Waterfall{{Service: "default/redis", Number: 1, Result: lifecycle.ResultWarm,
		Phases: []lifecycle.Phase{{Name: lifecycle.PhaseSYNSeen},
			{Name: lifecycle.PhaseListening, At: time.Millisecond, Took: time.Millisecond}}}}
}

func (f *fake) Sleep(ctx context.Context, k v1alpha1.Key) error {
	f.slept.Add(1)
	<-ctx.Done() // until the request ends
	return ctx.Err()
}

func (f *fake) Logs(ctx context.Context, k v1alpha1.Key, w io.Writer, o runtime.LogOptions) error {
	fmt.Fprintf(w, "%s %s %d %v\n", k, o.Container, o.Tail, o.Follow)
	return f.logs(ctx, w)
}

func (f *fake) Wake(context.Context, v1alpha1.Key) error { return f.ready }

func (f *fake) Hold(context.Context, v1alpha1.Key) (func(), error) {
	f.held.Add(1)
	return func() { f.held.Add(-1) }, f.ready
}

func (f *fake) Restart(_ context.Context, k v1alpha1.Key) (int, error) { return len(k), f.ready }

func (f *fake) Stats(_ context.Context, k v1alpha1.Key) ([]status.PodUsage, error) {
	return []status.PodUsage{{Service: k, Pod: "redis-1", CPUSeconds: 1.5, Throttled: 3}}, f.ready
}

func (f *fake) Subscribe(ctx context.Context) <-chan status.Event { return f.events }
func (f *fake) Ready() error                                      { return f.ready }

func start(t *testing.T, f *fake) (*Client, string) {
	path := filepath.Join(t.TempDir(), "control.sock")
	versions := func(context.Context) map[string]string { return map[string]string{"runc": "1.1"} }
	s, err := Serve(Config{Path: path, Services: f, Versions: versions})
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(path)
	t.Cleanup(func() {
		c.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	return c, path
}

func TestClientReadsTheServersAnswers(t *testing.T) {
	f := &fake{}
	c, path := start(t, f)
	ctx := t.Context()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
	st, err := c.Status(ctx)
	if err != nil || len(st) != 1 || st[0].Service.Spec.Port != 6379 || st[0].Service.Status.Replicas != 1 ||
		!st[0].Service.Status.LatestRequest.Time.Equal(time.Unix(1e9, 0)) || len(st[0].Pods) != 2 ||
		st[0].Traffic.NewFlows != 3 {
		t.Errorf("%+v, %v", st, err)
	}
	if p, err := c.Pressure(ctx); err != nil || len(p) != 1 || p[0] != f.Pressure()[0] {
		t.Errorf("%+v, %v", p, err)
	}
	ws, err := c.Wakes(ctx, "")
	if err != nil || len(ws) != 1 || ws[0].Total() != time.Millisecond {
		t.Errorf("%+v, %v", ws, err)
	}
	if ws, err := c.Wakes(ctx, "redis"); err != nil || ws == nil || len(ws) != 0 {
		t.Errorf("no wakes: %+v, %v", ws, err)
	}
	if _, err := c.Wakes(ctx, "nope"); !errors.Is(err, runtime.ErrNotFound) || err.Error() != `service "nope": not found` {
		t.Errorf("%v", err)
	}
	if v, err := c.Versions(ctx); err != nil || v["runc"] != "1.1" {
		t.Errorf("%v, %v", v, err)
	}
	if err := c.Healthy(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Ready(ctx); err != nil {
		t.Error(err)
	}
	f.ready = errors.New("no daemon is connected")
	var answer *Error
	if err := c.Ready(ctx); !errors.As(err, &answer) || answer.Code != http.StatusServiceUnavailable ||
		err.Error() != "no daemon is connected" {
		t.Errorf("%v", err)
	}
}

func TestSleepIsCancelledWithItsClient(t *testing.T) {
	f := &fake{}
	c, _ := start(t, f)
	if err := c.Sleep(t.Context(), "nope"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Sleep(ctx, "redis") }()
	for f.slept.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestLogsAreStreamedWithTheirError(t *testing.T) {
	f := &fake{logs: func(context.Context, io.Writer) error { return nil }}
	c, _ := start(t, f)
	var b bytes.Buffer
	if err := c.Logs(t.Context(), "redis", &b, runtime.LogOptions{Container: "aof", Tail: 10, Follow: true}); err != nil ||
		b.String() != "default/redis aof 10 true\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
	if err := c.Logs(t.Context(), "nope", &b, runtime.LogOptions{Tail: 10}); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("%v", err)
	}
	f.logs = func(context.Context, io.Writer) error { return errors.New("disk\nfull") }
	if err := c.Logs(t.Context(), "redis", io.Discard, runtime.LogOptions{Tail: -1}); err == nil ||
		err.Error() != "disk\nfull" {
		t.Errorf("an error after the beginning: %v", err)
	}
	// Lines come as they are written.
	more := make(chan struct{})
	f.logs = func(ctx context.Context, w io.Writer) error { <-more; fmt.Fprintln(w, "second"); return nil }
	r, w := io.Pipe()
	go func() { w.CloseWithError(c.Logs(t.Context(), "redis", w, runtime.LogOptions{Tail: -1, Follow: true})) }()
	first := make([]byte, len("default/redis  -1 true\n"))
	if _, err := io.ReadFull(r, first); err != nil {
		t.Fatal(err)
	}
	close(more)
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "second\n" {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestEventsAreStreamed(t *testing.T) {
	f := &fake{events: make(chan status.Event)}
	c, _ := start(t, f)
	got := make(chan status.Event)
	done := make(chan error)
	go func() { done <- c.Events(t.Context(), nil, func(e status.Event) { got <- e }) }()
	for i := range 3 {
		f.events <- status.Event{Kind: status.EventReport, Service: "default/redis", Text: fmt.Sprint(i)}
		if e := <-got; e.Text != fmt.Sprint(i) || e.Service != "default/redis" {
			t.Errorf("%+v", e)
		}
	}
	close(f.events)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	_, path := start(t, &fake{})
	c := NewClient(path)
	defer c.Close()
	for _, p := range []string{"/v1/logs?service=redis&tail=x&follow=true", "/v1/logs?service=redis&tail=1&follow=maybe"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x"+p, nil)
		resp, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", p, resp.Status)
		}
	}
	if err := c.nothing(t.Context(), http.MethodGet, "/nonsense", nil); err == nil ||
		!strings.Contains(err.Error(), "404") {
		t.Errorf("%v", err)
	}
}

func TestMissingInstanceIsReported(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "control.sock")
	want := "no wangell instance is running here (" + path + `): start one with "wangell up -f FILE"`
	if err := NewClient(path).Healthy(t.Context()); !errors.Is(err, ErrNotRunning) || err.Error() != want {
		t.Errorf("no socket: %v", err)
	}
	// A killed instance leaves its socket.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if err := NewClient(path).Healthy(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("a socket without a server: %v", err)
	}
	s, err := Serve(Config{Path: path, Services: &fake{}})
	if err != nil {
		t.Fatalf("a socket without a server is in the way: %v", err)
	}
	if _, err := Serve(Config{Path: path, Services: &fake{}}); err == nil || !strings.Contains(err.Error(), "served by "+
		"another") {
		t.Errorf("a second server: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
