// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/convert"
	"wangell.loutres.me/internal/images/lazy/trace"
	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/test/testutil/e2e"
	"wangell.loutres.me/test/testutil/syncbuf"
)

// rewrite does what wangell image optimise does.
func rewrite(ctx context.Context, o Optimisation) (digest.Digest, error) {
	var unreadable error
	res, err := convert.Run(ctx, convert.Options{
		Source: o.Source, Destination: o.Destination, Layers: convert.Layers{Mode: convert.Keep}, Verify: true,
		Compression: convert.Compression{Format: convert.EStargz},
		First: func(layer digest.Digest) []string {
			t, err := trace.Read(o.Root, layer)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				unreadable = err
			}
			return t.Files
		},
	})
	return res.Digest, errors.Join(err, unreadable)
}

// A service's image is rewritten after its first pod by what that has read, and the next pods use the result, also
// those of the next process. It is rewritten again once its name stands for something else.
func TestAnImageIsOptimisedAfterItsFirstPod(t *testing.T) {
	withSnapshotter(t)
	cfg, h := unready(t), newLazyHub(t)
	h.release()
	asked := make(chan Optimisation, 10)
	cfg.Optimise = func(ctx context.Context, o Optimisation) (digest.Digest, error) {
		asked <- o
		return rewrite(ctx, o)
	}
	r, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := h.service("model")
	s.Spec.ImagePull.Optimise = true
	first := launchPod(t, r, s)
	beside := launchPod(t, r, s)
	if beside.ImageDigest != first.ImageDigest || len(asked) > 0 {
		t.Errorf("the second pod runs %s, the first one %s; asked for %d results", beside.ImageDigest, first.ImageDigest,
			len(asked))
	}
	stop := func(pods ...runtime.Pod) {
		t.Helper()
		for _, p := range pods {
			if err := r.Stop(t.Context(), p.ID, 0); err != nil {
				t.Error(err)
			}
		}
	}
	stop(first)
	result := func(is func(optimised) bool) (o optimised) {
		t.Helper()
		e2e.Eventually(t, "there is a result", func() (bool, string) {
			o, _ = r.images.optimiser.of(h.ref)
			return o.Name != "" && is(o), o.Name
		})
		return o
	}
	o := result(func(optimised) bool { return true })
	if want := h.host + "/lazy@" + first.ImageDigest; (<-asked).Source != want || o.Source.String() != first.ImageDigest {
		t.Errorf("%+v, want it made from %s", o, want)
	}
	if p := launchPod(t, r, s); p.ImageDigest != first.ImageDigest {
		t.Errorf("beside a pod of the image itself runs %s", p.ImageDigest)
	} else {
		stop(p)
	}
	stop(beside)
	next := launchPod(t, r, s)
	if !strings.HasSuffix(o.Name, "@"+next.ImageDigest) || next.ImageDigest == first.ImageDigest ||
		snapshotterOf(t, r, next) != lazySnapshotter {
		t.Errorf("the next pod runs %s, want %s", next.ImageDigest, o.Name)
	}
	stop(next)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}

	r = start(t, cfg)
	again := launchPod(t, r, s)
	if again.ImageDigest != next.ImageDigest {
		t.Errorf("a pod of the next process runs %s, want %s", again.ImageDigest, next.ImageDigest)
	}
	stop(again)
	if len(asked) > 0 {
		t.Errorf("asked again for %+v", <-asked)
	}
	// The name stands for the result itself now, which is another image.
	img, err := r.client.ImageService().Get(t.Context(), o.Name)
	if err != nil {
		t.Fatal(err)
	}
	img.Name = h.ref
	if _, err := r.client.ImageService().Update(t.Context(), img); err != nil {
		t.Fatal(err)
	}
	r.images.forget(h.ref)
	stop(launchPod(t, r, s))
	result(func(got optimised) bool { return got.Source == img.Target.Digest })
}

// A registry that takes no images is named in the log, and the service goes on with its image.
func TestAnImageStaysAsItIsWhereNothingCanBeStored(t *testing.T) {
	withSnapshotter(t)
	var log syncbuf.Buffer
	cfg, h := unready(t), newLazyHub(t)
	h.release()
	cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	cfg.Optimise = rewrite
	before := h.before
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			http.Error(w, "read-only", http.StatusMethodNotAllowed)
			return true
		}
		return before(w, r)
	}
	r := start(t, cfg)
	s := h.service("model")
	s.Spec.ImagePull.Optimise = true
	first := launchPod(t, r, s)
	if err := r.Stop(t.Context(), first.ID, 0); err != nil {
		t.Fatal(err)
	}
	e2e.Eventually(t, "the log says why", func() (bool, string) {
		text := log.String()
		return strings.Contains(text, "registry "+h.host+" takes no images for lazy") &&
			strings.Contains(text, "service=default/model"), text
	})
	if next := launchPod(t, r, s); next.ImageDigest != first.ImageDigest {
		t.Errorf("the next pod runs %s", next.ImageDigest)
	}
}
