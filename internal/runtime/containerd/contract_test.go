// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"testing"
	"time"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

func TestContainerdFulfilsTheRuntimeContract(t *testing.T) {
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness {
		cfg := testConfig(t)
		var last *Runtime
		t.Cleanup(func() {
			if last == nil {
				return
			}
			before := inventory(t, cfg)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := last.Destroy(ctx); err != nil {
				t.Error("destroy:", err)
			}
			if err := RemoveOwn(cfg.StateDir); err != nil {
				t.Error(err)
			}
			if left := inventory(t, cfg); len(left) > 0 {
				t.Errorf("left behind: %q\nbefore Destroy: %q", left, before)
			}
		})
		return runtimetest.Harness{Open: func(t *testing.T) runtime.Runtime {
			r, err := New(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			last = r
			loadProbe(t, r)
			return r
		}}
	})
}
