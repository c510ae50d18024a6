// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/runtime"
)

func TestResolveFindsTheServiceThatIsMeant(t *testing.T) {
	w := newWorld(t, nil)
	other := newService("x")
	other.Namespace = "team"
	third := newService("y")
	third.Namespace = "team"
	fourth := newService("y")
	fourth.Namespace = "ops"
	w.apply(newService("x"), other, third, fourth)
	for in, want := range map[string]string{"x": "default/x", "team/x": "team/x", "ops/y": "ops/y"} {
		if got, err := w.c.Resolve(in); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	if _, err := w.c.Resolve("y"); err == nil || !strings.Contains(err.Error(), "[ops/y team/y]") {
		t.Errorf("y: %v", err)
	}
	if _, err := w.c.Resolve("team"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("team: %v", err)
	}
}

func TestReadyNeedsServicesAndADaemon(t *testing.T) {
	w := newWorld(t, nil)
	if w.c.Ready() == nil {
		t.Error("ready without services")
	}
	w.apply()
	w.until("ready", func() bool { return w.c.Ready() == nil })
	w.d.client.Close()
	w.until("not ready without a daemon", func() bool { return w.c.Ready() != nil })
}

func TestChangedReturnsEachServiceOnce(t *testing.T) {
	w := newCluster(t, nil)
	for i := range 5 {
		w.put(newService(fmt.Sprint("s", i)), byte(i+1))
	}
	w.synced()
	seen := map[runtime.Key]bool{}
	for len(seen) < 5 {
		keys, err := w.c.Changed(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range keys {
			seen[k] = true
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if keys, err := w.c.Changed(ctx); err == nil {
		t.Errorf("changed without a reason: %v", keys)
	}
	w.scale("s3", 1)
	w.untilState("s3", "Warm")
	for warm := false; !warm; {
		keys, err := w.c.Changed(t.Context())
		if err != nil || !slices.Equal(keys, []runtime.Key{"default/s3"}) {
			t.Fatalf("changed: %v, %v", keys, err)
		}
		st, _ := w.c.StatusOf(keys[0])
		warm = st.Service.Status.State == "Warm" && st.Serving == 1 && st.Desired == 1
	}
}
