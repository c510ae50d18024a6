// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
)

func TestShutdownEndsAllPodsAndGoroutines(t *testing.T) {
	before := goruntime.NumGoroutine()
	w := newWorld(t, nil)
	w.apply(newService("a"), newService("b"), newService("c"))
	w.warm("a")
	w.warm("b")
	w.rt.onStart = func(ctx context.Context, _ *v1alpha1.WangellService) error { <-ctx.Done(); return ctx.Err() }
	w.d.syn(w.vip("c"))
	w.untilState("c", "Waking")
	if err := w.c.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if running, _, _ := w.rt.state(); len(running) != 0 {
		t.Errorf("running %v", running)
	}
	if err := w.c.Update(nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Update after the end: %v", err)
	}
	if err := w.c.Sleep(t.Context(), "default/a"); !errors.Is(err, ErrClosed) {
		t.Errorf("Sleep after the end: %v", err)
	}
	if err := w.c.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown twice: %v", err)
	}
	w.d.client.Close()
	w.until("no goroutine is left", func() bool { return goruntime.NumGoroutine() <= before })
}

func TestShutdownReportsPodsThatAreLeft(t *testing.T) {
	w := newWorld(t, nil)
	w.apply(newService("a"))
	w.warm("a")
	w.rt.onStop = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // long enough to begin
	defer cancel()
	if err := w.c.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 pods "+
		"are not gone") {
		t.Errorf("%v", err)
	}
}
