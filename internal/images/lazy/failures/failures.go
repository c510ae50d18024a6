// SPDX-License-Identifier: Apache-2.0

// Package failures reports, from one process to another, which files of lazily pulled images cannot be fetched.
package failures

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"wangell.loutres.me/internal/base/monotime"
)

// Failure says that files of an image cannot be read: programs that read them get EIO.
type Failure struct {
	// Image is the reference of the image, and Layer the digest of the layer.
	Image string `json:"image"`
	Layer string `json:"layer"`
	// Files are the paths of the files that were being read, as far as known.
	Files []string `json:"files,omitempty"`
	// Registry is where the layer comes from.
	Registry string `json:"registry"`
	// Offset is the position in the packed layer, in bytes.
	Offset int64 `json:"offset"`
	// Cause is why, and At when.
	Cause string        `json:"cause"`
	At    monotime.Time `json:"at"`
}

// mostNamed bounds the files in a text.
const mostNamed = 3

// String names the files, their image and its registry, and says why the files could not be fetched.
func (f Failure) String() string {
	what := "parts"
	switch n := len(f.Files); {
	case n > mostNamed:
		what = fmt.Sprintf("%s and %d more files", strings.Join(f.Files[:mostNamed], ", "), n-mostNamed)
	case n > 0:
		what = strings.Join(f.Files, ", ")
	}
	return fmt.Sprintf("%s of image %s cannot be fetched from registry %s (layer %s at %d): %s", what, f.Image, f.Registry,
		f.Layer, f.Offset, f.Cause)
}

// Socket returns the socket at which a snapshotter reports failures, given the snapshotter's own socket.
func Socket(snapshotter string) string { return snapshotter + ".failures" }

const (
	path = "/v1/failures"
	// kept is the number of failures that are kept for later clients.
	kept = 64
	// headerTimeout bounds the time for the header of a request.
	headerTimeout = 5 * time.Second
)

// Log reports failures. The zero value is ready to use.
type Log struct {
	mu      sync.Mutex
	list    []Failure
	changed chan struct{} // closed at the next change; nil if nobody waits
	dropped int           // failures that were removed from list
}

// Add reports a failure.
func (l *Log) Add(f Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, f)
	if n := len(l.list) - kept; n > 0 {
		l.list, l.dropped = l.list[n:], l.dropped+n
	}
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// after returns the failures after the first n, the number of failures so far, and a channel that is closed when
// there are more.
func (l *Log) after(n int) ([]Failure, int, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	from := max(n-l.dropped, 0)
	return append([]Failure(nil), l.list[from:]...), l.dropped + len(l.list), l.changed
}

// Serve answers Watch until ctx ends. It closes the listener.
func (l *Log) Serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path, l.stream)
	s := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	err := s.Serve(listener)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// stream sends all failures so far and each that follows, one per line.
func (l *Log) stream(w http.ResponseWriter, r *http.Request) {
	out, flush := json.NewEncoder(w), http.NewResponseController(w)
	for n := 0; ; {
		list, next, more := l.after(n)
		n = next
		for _, f := range list {
			if out.Encode(f) != nil {
				return
			}
		}
		if flush.Flush() != nil {
			return
		}
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}

// Watch calls told with each failure that a snapshotter has kept, and with each later one, until ctx or the
// snapshotter ends. socket is as returned by Socket.
func Watch(ctx context.Context, socket string, told func(Failure)) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://snapshotter"+path, http.NoBody)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	for in := json.NewDecoder(res.Body); ; {
		var f Failure
		if err := in.Decode(&f); err != nil {
			return err
		}
		told(f)
	}
}
