// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"testing"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

func TestOnlyRecentServicesHaveReadyContainers(t *testing.T) {
	cfg := testConfig(t)
	cfg.ReadyContainers = 3
	r := startWithProbe(t, cfg)
	names := []string{"a", "b", "c", "d", "e", "f"}
	for _, n := range names {
		if err := r.Prepare(t.Context(), runtimetest.Service(n), nil); err != nil {
			t.Fatal(err)
		}
	}
	ready := func() map[v1alpha1.Key]bool {
		awaitReady(t, r)
		r.mu.Lock()
		defer r.mu.Unlock()
		keys := map[v1alpha1.Key]bool{}
		for k := range r.ready.containers {
			keys[k] = true
		}
		return keys
	}
	if got := ready(); len(got) != 3 || !got["default/a"] || !got["default/b"] || !got["default/c"] {
		t.Errorf("ready after Prepare: %v", got)
	}
	p, err := r.Start(t.Context(), runtimetest.Service("f"), runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), p.ID, time.Second); err != nil {
		t.Fatal(err)
	}
	if got := ready(); len(got) != 3 || !got["default/f"] {
		t.Errorf("ready after f was used: %v", got)
	}
	ids, err := r.instanceContainers(t.Context())
	if err != nil || len(ids) != 3 {
		t.Errorf("containers %v, %v; want 3", ids, err)
	}
}

func TestKeeperWaitsForWakes(t *testing.T) {
	var k keeper
	k.init()
	now := time.Now()
	if ok, _ := k.quiet(now); !ok {
		t.Error("not quiet at first")
	}
	k.begin()
	k.begin()
	k.end()
	if ok, wait := k.quiet(now); ok || wait != 0 {
		t.Error("quiet while a wake is in progress")
	}
	k.end()
	if ok, wait := k.quiet(now); ok || wait <= 0 || wait > 2*keeperQuiet {
		t.Errorf("just after a wake: %v, %v", ok, wait)
	}
	if ok, _ := k.quiet(now.Add(2 * keeperQuiet)); !ok {
		t.Error("not quiet long after a wake")
	}
	k.stopped()
	if ok, _ := k.quiet(now); !ok {
		t.Error("not quiet after a stop")
	}
}
