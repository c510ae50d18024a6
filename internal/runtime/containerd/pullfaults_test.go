// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/runtimetest"
	"wangell.loutres.me/test/testutil/faultyhub"
)

// faultySize is the size of a layer whose download is disturbed, in bytes.
const faultySize = 2 << 20

// prepareFaulty pulls an image for a service of its own.
func prepareFaulty(ctx context.Context, r *Runtime, ref string) error {
	s := runtimetest.Service("faulty")
	s.Spec.Image, s.Spec.ImagePullPolicy = ref, ""
	return r.Prepare(ctx, s, nil)
}

// partialDownloads returns the downloads of a blob that are not complete, with their offsets.
func partialDownloads(t *testing.T, r *Runtime, digest string) (offset int64, n int) {
	t.Helper()
	active, err := r.client.ContentStore().ListStatuses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range active {
		if strings.HasSuffix(s.Ref, digest) {
			offset, n = s.Offset, n+1
		}
	}
	return offset, n
}

// What goes wrong with downloads on one machine; internal/images/prefetch has the same through CRI.
func TestPullsSurviveAFaultyRegistry(t *testing.T) {
	r := start(t, unready(t))
	hub := faultyhub.New(t)

	t.Run("a download that is cut goes on", func(t *testing.T) {
		ref, layers := hub.Push(t, "cut:v1", faultyhub.Noise(t, faultySize))
		hub.Set(faultyhub.Fault{Cut: faultySize / 4})
		defer hub.Set(faultyhub.Fault{})
		tries := 1
		for ; ; tries++ {
			err := prepareFaulty(t.Context(), r, ref)
			if err == nil {
				break
			}
			if tries == 10 {
				t.Fatal(err)
			}
		}
		sent, requests := hub.Sent(layers[0])
		t.Logf("%d tries, %d requests, %d bytes sent of a layer of about %d", tries, requests, sent, faultySize)
		if requests < 4 || sent > faultySize*5/4 {
			t.Errorf("%d bytes in %d requests: downloads begin anew", sent, requests)
		}
	})

	t.Run("a layer that is not what its digest says is refused", func(t *testing.T) {
		ref, layers := hub.Push(t, "corrupt:v1", faultyhub.Noise(t, faultySize))
		hub.Set(faultyhub.Fault{Corrupt: true})
		err := prepareFaulty(t.Context(), r, ref)
		if !errors.Is(err, runtime.ErrImage) || !strings.Contains(err.Error(), "digest") {
			t.Errorf("got %v", err)
		}
		t.Log(err)
		if offset, n := partialDownloads(t, r, layers[0]); n > 0 {
			t.Errorf("%d bytes of it are kept", offset)
		}
		hub.Set(faultyhub.Fault{})
		if err := prepareFaulty(t.Context(), r, ref); err != nil {
			t.Error(err)
		}
	})

	t.Run("a token that expires is renewed", func(t *testing.T) {
		ref, _ := hub.Push(t, "token:v1", faultyhub.Noise(t, 1<<15))
		hub.Set(faultyhub.Fault{TokenFor: time.Second, Pause: 1200 * time.Millisecond})
		defer hub.Set(faultyhub.Fault{})
		before := hub.Issued()
		if err := prepareFaulty(t.Context(), r, ref); err != nil {
			t.Error(err)
		}
		if n := hub.Issued() - before; n < 2 {
			t.Errorf("%d tokens were issued", n)
		}
	})

	t.Run("a limit of the registry is waited for", func(t *testing.T) {
		ref, layers := hub.Push(t, "limited:v1", faultyhub.Noise(t, 1<<15))
		const pause = time.Second
		hub.Set(faultyhub.Fault{RetryAfter: int(pause.Seconds())})
		done, begin := make(chan error, 1), time.Now()
		go func() { done <- prepareFaulty(t.Context(), r, ref) }()
		eventually(t, func() error {
			if hub.Limited() == 0 {
				return errors.New("the registry has refused no request")
			}
			return nil
		})
		hub.Set(faultyhub.Fault{})
		if err := <-done; err != nil || time.Since(begin) < pause {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		if _, requests := hub.Sent(layers[0]); requests != 1 {
			t.Errorf("the layer was fetched %d times", requests)
		}
	})

	t.Run("a slow registry is waited for", func(t *testing.T) {
		ref, _ := hub.Push(t, "slow:v1", faultyhub.Noise(t, faultySize/8))
		hub.Set(faultyhub.Fault{Pause: 200 * time.Millisecond})
		defer hub.Set(faultyhub.Fault{})
		var seen []string
		s := runtimetest.Service("slow")
		s.Spec.Image, s.Spec.ImagePullPolicy = ref, ""
		err := r.Prepare(t.Context(), s, func(_ string, done, total int64) {
			seen = append(seen, fmt.Sprintf("%d/%d", done, total))
		})
		if err != nil || len(seen) < 2 {
			t.Errorf("progress %v, %v", seen, err)
		}
	})

	t.Run("a layer in common is fetched once", func(t *testing.T) {
		common := faultyhub.Noise(t, faultySize)
		a, layersA := hub.Push(t, "team/a:v1", common, faultyhub.Noise(t, 1<<16))
		b, layersB := hub.Push(t, "team/b:v1", common, faultyhub.Noise(t, 1<<16))
		done := make(chan error, 2)
		for _, ref := range []string{a, b} {
			go func() { done <- prepareFaulty(t.Context(), r, ref) }()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		for _, l := range append(layersA, layersB...) {
			if _, requests := hub.Sent(l); requests != 1 {
				t.Errorf("layer %s was fetched %d times", l, requests)
			}
		}
	})
}

// The next process goes on with what one has pulled that ended during the pull.
func TestTheNextProcessGoesOnWithAPull(t *testing.T) {
	cfg := unready(t)
	first, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	hub := faultyhub.New(t)
	ref, layers := hub.Push(t, "killed:v1", faultyhub.Noise(t, faultySize))
	hub.Set(faultyhub.Fault{Hold: make(chan struct{})})
	ended := make(chan error, 1)
	go func() { ended <- prepareFaulty(context.Background(), first, ref) }()
	eventually(t, func() error {
		if offset, _ := partialDownloads(t, first, layers[0]); offset < faultySize/4 {
			return fmt.Errorf("%d bytes are there", offset)
		}
		return nil
	})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Fatal("the pull ended with its process, and without an error")
	}
	hub.Set(faultyhub.Fault{})
	r := start(t, cfg)
	if err := prepareFaulty(t.Context(), r, ref); err != nil {
		t.Fatal(err)
	}
	sent, requests := hub.Sent(layers[0])
	t.Logf("%d bytes sent in %d requests for a layer of about %d", sent, requests, faultySize)
	if _, n := partialDownloads(t, r, layers[0]); n > 0 || sent > 2*faultySize {
		t.Errorf("%d partial downloads are left, %d bytes were sent", n, sent)
	}
}
