// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/debimage"
	"wangell.loutres.me/test/testutil/need"
)

func TestContainerdFulfilsTheRuntimeContract(t *testing.T) { fulfilsContract(t, DefaultSnapshotter) }

func TestErofsFulfilsTheRuntimeContract(t *testing.T) {
	withErofs(t)
	fulfilsContract(t, erofs.Snapshotter)
}

// withErofs puts a containerd that can unpack for the snapshotter erofs into $PATH, and what it needs for that.
func withErofs(t *testing.T) {
	t.Helper()
	program := need.ErofsContainerd(t)
	maker, _, err := debimage.MkfsErofs(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", strings.Join([]string{filepath.Dir(program), maker, os.Getenv("PATH")}, ":"))
}

func fulfilsContract(t *testing.T, snapshotter string) {
	t.Helper()
	images := 0
	runtimetest.Run(t, func(t *testing.T) runtimetest.Harness {
		cfg := testConfig(t)
		cfg.Snapshotter = snapshotter
		var last *Runtime
		t.Cleanup(func() {
			if last == nil {
				return
			}
			images += layerImages(t, cfg)
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
	if snapshotter == erofs.Snapshotter && images == 0 {
		t.Error("no layer became an image")
	}
}

// layerImages returns the number of layers that are images of EROFS. It fails the test if one was not made by the
// differ: the folder of the snapshot then has files as well.
func layerImages(t *testing.T, cfg Config) int {
	t.Helper()
	snapshots := filepath.Join(snapshotterRoot(cfg.StateDir, erofs.Snapshotter), "snapshots")
	layers, err := filepath.Glob(filepath.Join(snapshots, "*", "layer.erofs"))
	if err != nil {
		t.Error(err)
	}
	for _, l := range layers {
		files, err := filepath.Glob(filepath.Join(filepath.Dir(l), "fs", "*"))
		if err != nil || len(files) > 0 {
			t.Errorf("%s was unpacked file by file: %q, %v", l, files, err)
		}
	}
	return len(layers)
}
