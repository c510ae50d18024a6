// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"testing"
	"time"

	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/node/cri/critest"
)

// The usage of a pod is that of all its containers. A pod with a container without figures is left out.
func TestUsageIsTheSumOfTheContainers(t *testing.T) {
	f := critest.New(t)
	f.Start()
	l := &reports{}
	w, err := New(Config{Endpoint: f.Path, OnPodReport: l.add})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	known, unknown := t.TempDir(), t.TempDir()
	f.Pod("p", "hello", known, "10.244.0.9")
	f.Pod("q", "hello", unknown, "10.244.0.9")
	for _, c := range []struct{ pod, id string }{{"p", "main"}, {"p", "side"}, {"q", "lone"}} {
		f.Container(c.pod, c.id, c.id)
		f.Become(c.id, critest.Running, 0)
	}
	f.Use("main", time.Second, 100)
	f.Use("side", time.Millisecond, 11)
	for end := time.Now().Add(patience); l.count() < 8; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d pod events, want 8", l.count())
		}
	}
	got, err := w.Usage(ctx, []string{known, unknown, "/not/there"})
	if err != nil {
		t.Fatal(err)
	}
	if u := got[known]; len(got) != 1 || u.CPU != 1001*time.Millisecond || u.Memory != 111 || u.At <= 0 ||
		u.At > monotime.Now() {
		t.Errorf("%+v", got)
	}
	f.Stop()
	if got, err := w.Usage(ctx, []string{known}); err == nil {
		t.Errorf("of a runtime that is away: %+v", got)
	}
}
