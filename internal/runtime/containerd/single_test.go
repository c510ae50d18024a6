// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
)

// Each pod locks a file of the volume and exits with 3 if another one holds the lock. They ignore SIGTERM, so that each
// stop takes a while, and the next start is asked for meanwhile.
func TestPodsThatWriteOneVolumeNeverRunAtTheSameTime(t *testing.T) {
	r := startWithProbe(t, testConfig(t))
	folder := t.TempDir()
	s := runtimetest.Service("writer", "LOCK", "/data/lock", "IGNORE_TERM", "yes")
	s.Spec.Volumes = v1alpha1.VolumesOf(corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: folder},
	}})
	s.Spec.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	p, err := r.Start(t.Context(), s, runtime.StartHooks{})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		runtimetest.Ask(t, p, "/write", url.Values{"f": {"/data/last"}, "t": {p.ID}})
		refused := fmt.Sprintf("pod %s may still write volume %q: context deadline exceeded", p.ID, "data")
		for within := 100 * time.Millisecond; ; within *= 2 { // until it is long enough to come to the wait
			ctx, cancel := context.WithTimeout(t.Context(), within)
			_, err := r.Start(ctx, s, runtime.StartHooks{})
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) || within > time.Minute {
				t.Fatalf("a second pod: %v", err)
			}
			if strings.HasSuffix(err.Error(), refused) {
				break
			}
		}
		var next runtime.Pod
		var starts sync.WaitGroup
		starts.Go(func() { next, err = r.Start(t.Context(), s, runtime.StartHooks{}) })
		if err := r.Stop(t.Context(), p.ID, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if starts.Wait(); err != nil {
			t.Fatal(err)
		}
		if code, text := runtimetest.Ask(t, next, "/read", url.Values{"f": {"/data/last"}}); code != http.StatusOK ||
			text != p.ID {
			t.Fatalf("the next pod reads %d %q", code, text)
		}
		p = next
	}
	if _, err := os.Stat(filepath.Join(folder, "conflict")); err == nil {
		t.Error("two pods ran at the same time")
	}
}
