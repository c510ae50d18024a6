// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// limitedHost asks for a pause until it lets clients in.
type limitedHost struct {
	http.Handler
	after time.Duration
	open  time.Time

	mu      sync.Mutex
	refused []time.Time
}

// ServeHTTP implements http.Handler.
func (h *limitedHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Range") == "bytes=0-0" || !time.Now().Before(h.open) { // the question for the size
		h.Handler.ServeHTTP(w, r)
		return
	}
	h.mu.Lock()
	h.refused = append(h.refused, time.Now())
	h.mu.Unlock()
	w.Header().Set("Retry-After", strconv.Itoa(int(h.after.Seconds())))
	w.WriteHeader(http.StatusTooManyRequests)
}

// A registry that asks for pauses gets them, also if they are longer than the patience of a read. One that goes on
// asking is given up.
func TestReadsWaitAsLongAsTheRegistryAsks(t *testing.T) {
	const patience, pause = 10 * time.Second, 40 * time.Second
	for _, c := range []struct {
		name   string
		lasts  time.Duration
		reads  bool
		within time.Duration
	}{
		{"three pauses", 3*pause - time.Second, true, 3*pause + time.Second},
		{"for ever", time.Hour, false, limitedFor + pause},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				content := noise(2 * blockSize).Data
				parts := &partHost{name: testRegistry, content: content}
				parts.send = func(_ context.Context, w io.Writer, part []byte) { _, _ = w.Write(part) }
				host := &limitedHost{Handler: parts, after: pause, open: time.Now().Add(c.lasts)}
				b := openBlob(t, patience, len(content), inMemory(t, testRegistry, host))
				begin := time.Now()
				p := make([]byte, blockSize)
				_, err := b.ReadAt(p, 0)
				took := time.Since(begin)
				if (err == nil) != c.reads || c.reads && !bytes.Equal(p, content[:blockSize]) || took > c.within {
					t.Errorf("the read took %v: %v", took, err)
				}
				if err != nil && (!strings.Contains(err.Error(), "429") || took < limitedFor-pause) {
					t.Errorf("after %v: %v", took, err)
				}
				host.mu.Lock()
				defer host.mu.Unlock()
				for i := 1; i < len(host.refused); i++ {
					if gap := host.refused[i].Sub(host.refused[i-1]); gap < pause {
						t.Errorf("asked again after %v", gap)
					}
				}
			})
		})
	}
}
