// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/images/lazy/failures"
	"wangell.loutres.me/internal/images/readapi"
)

// partHost answers requests for parts of a blob as send does, which gets the part. The context ends with the request.
type partHost struct {
	name    string
	content []byte
	send    func(ctx context.Context, w io.Writer, part []byte)
	source  string // readapi.SourceHeader

	mu   sync.Mutex
	asks []int64 // where the parts began
}

// ServeHTTP implements http.Handler.
func (h *partHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet { // as a mirror that does not know the size
		http.NotFound(w, r)
		return
	}
	var from, to int64
	if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if h.source != "" {
		w.Header().Set(readapi.SourceHeader, h.source)
	}
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(h.content)))
	w.WriteHeader(http.StatusPartialContent)
	if to > from { // not the question for the size
		h.mu.Lock()
		h.asks = append(h.asks, from)
		h.mu.Unlock()
		h.send(r.Context(), flushing{w}, h.content[from:to+1])
		return
	}
	_, _ = w.Write(h.content[from : to+1])
}

// asked returns where the parts began that were requested since the last call.
func (h *partHost) asked() []int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.asks = nil }()
	return h.asks
}

// flushing sends each write at once.
type flushing struct{ http.ResponseWriter }

// Write implements io.Writer.
func (f flushing) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return n, http.NewResponseController(f.ResponseWriter).Flush()
}

// pipes is a listener whose connections are in memory: the clock of a synctest bubble holds for them.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func newPipes() *pipes {
	p := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error {
	p.close()
	return nil
}

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.accepted <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// inMemory returns how to ask a host.
func (h *partHost) inMemory(t *testing.T) docker.RegistryHost { return inMemory(t, h.name, h) }

// inMemory returns how to ask a host of a name.
func inMemory(t *testing.T, name string, h http.Handler) docker.RegistryHost {
	t.Helper()
	l := newPipes()
	server := &http.Server{Handler: h}
	transport := &http.Transport{DialContext: l.dial}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		<-served
	})
	return docker.RegistryHost{Client: &http.Client{Transport: transport}, Scheme: "http", Host: name, Path: "/v2"}
}

const testRegistry = "registry.example"

// openBlob opens a blob of a size that hosts have, in a store that fetches nothing in the background.
func openBlob(t *testing.T, patience time.Duration, size int, hosts ...docker.RegistryHost) *Blob {
	t.Helper()
	s, err := newStore(Config{
		Root: t.TempDir(), Workers: 1, Piece: DefaultPiece, Patience: patience, Settle: 1000 * time.Hour,
		Log:    slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
		Failed: func(failures.Failure) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	from := source{
		hosts:  func(string) ([]docker.RegistryHost, error) { return hosts, nil },
		broken: &brokenHosts{},
		ref:    reference.Spec{Locator: testRegistry + "/team/a", Object: "v1"}, digest: digest.FromString("a"),
	}
	b, err := s.open(t.Context(), from, "a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.close()
		if err := s.release(b, false); err != nil {
			t.Error(err)
		}
	})
	if b.size != int64(size) {
		t.Fatalf("the blob has %d bytes, want %d", b.size, size)
	}
	return b
}

// readBlob reads a range of a blob, and fails the test unless it equals that range of content.
func readBlob(t *testing.T, b *Blob, content []byte, from, to int) {
	t.Helper()
	p := make([]byte, to-from)
	if _, err := b.ReadAt(p, int64(from)); err != nil || !bytes.Equal(p, content[from:to]) {
		t.Fatalf("read from %d to %d: %v, equal: %v", from, to, err, bytes.Equal(p, content[from:to]))
	}
}

// A read waits for minutes while bytes come, and fails once none has come for as long as its patience.
func TestPatienceCountsFromTheLastByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const patience, every, chunk, size = 30 * time.Second, 9 * time.Second, 1 << 10, 2 * blockSize
		content := noise(size).Data
		var last atomic.Int64 // when a byte was sent
		drySince := int64(blockSize + 100*chunk)
		registry := &partHost{name: testRegistry, content: content}
		registry.send = func(ctx context.Context, w io.Writer, part []byte) {
			for len(part) > 0 && int64(size-len(part)) < drySince {
				time.Sleep(every)
				n, _ := w.Write(part[:min(chunk, len(part))])
				part = part[n:]
				last.Store(time.Now().UnixNano())
			}
			if len(part) > 0 {
				<-ctx.Done()
			}
		}
		b := openBlob(t, patience, size, registry.inMemory(t))
		begin := time.Now()
		readBlob(t, b, content, 0, blockSize)
		if took, want := time.Since(begin), every*blockSize/chunk; took != want {
			t.Errorf("the read took %v, want %v", took, want)
		}
		_, err := b.ReadAt(make([]byte, blockSize), blockSize)
		if err == nil || !strings.Contains(err.Error(), "sent nothing for 10s") {
			t.Errorf("a read of which the end does not come: %v", err)
		}
		if waited := time.Since(time.Unix(0, last.Load())); waited != patience {
			t.Errorf("the read failed %v after the last byte, want %v", waited, patience)
		}
	})
}

// What a host does not go on sending comes from the next one, from the middle of a block on. The host is asked last for
// a while.
func TestAReadGoesOnWithAnotherHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, sent = 4 << 20, 100 << 10
		content := noise(size).Data
		mirror := &partHost{name: "mirror.example", content: content, source: readapi.SourceNode}
		mirror.send = func(ctx context.Context, w io.Writer, part []byte) {
			_, _ = w.Write(part[:sent])
			<-ctx.Done()
		}
		registry := &partHost{name: testRegistry, content: content}
		registry.send = func(_ context.Context, w io.Writer, part []byte) { _, _ = w.Write(part) }
		b := openBlob(t, DefaultPatience, size, mirror.inMemory(t), registry.inMemory(t))
		begin := time.Now()
		readBlob(t, b, content, 0, blockSize)
		if took := time.Since(begin); took < stall || took > stall+time.Second {
			t.Errorf("the read took %v, want %v", took, stall)
		}
		checkAsked(t, mirror, 0)
		checkAsked(t, registry, sent)
		b.store.mu.Lock()
		if !b.lent[0] || b.lent[1] || b.borrows != 1 {
			t.Errorf("not verified are the blocks %v", b.lent)
		}
		b.store.mu.Unlock()
		const later = aheadBlocks * blockSize
		readBlob(t, b, content, later, later+1)
		checkAsked(t, mirror)
		checkAsked(t, registry, later)
		time.Sleep(brokenFor)
		readBlob(t, b, content, 2*later, 2*later+1)
		checkAsked(t, mirror, 2*later)
	})
}

func checkAsked(t *testing.T, h *partHost, want ...int64) {
	t.Helper()
	if got := h.asked(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s was asked for parts from %v, want %v", h.name, got, want)
	}
}

// No byte comes twice from a registry that cuts each answer before a block is complete.
func TestABlockComesInPiecesOfAnswersThatAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, most = 1 << 20, 100 << 10
		content := noise(size).Data
		registry := &partHost{name: testRegistry, content: content}
		registry.send = func(_ context.Context, w io.Writer, part []byte) {
			n, _ := w.Write(part[:min(most, len(part))])
			if n < len(part) {
				panic(http.ErrAbortHandler)
			}
		}
		b := openBlob(t, DefaultPatience, size, registry.inMemory(t))
		readBlob(t, b, content, 0, size)
		for i, from := range registry.asked() {
			if from != int64(i*most) {
				t.Errorf("answer %d begins at %d, want %d", i+1, from, i*most)
			}
		}
		if b.store.mu.Lock(); len(b.begun) > 0 || b.store.stats.UrgentBytes != size {
			t.Errorf("%d blocks are begun, %d bytes were received", len(b.begun), b.store.stats.UrgentBytes)
		}
		b.store.mu.Unlock()
	})
}

// timed is a body that notes the longest time between reads that got something.
type timed struct {
	io.ReadCloser
	last    time.Time
	longest *atomic.Int64
}

// Read implements io.Reader.
func (b *timed) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	now := time.Now()
	b.longest.Store(max(b.longest.Load(), int64(now.Sub(b.last))))
	b.last = now
	return n, err
}

// timing is a transport whose bodies are timed.
type timing struct{ longest atomic.Int64 }

// RoundTrip implements http.RoundTripper.
func (r *timing) RoundTrip(req *http.Request) (*http.Response, error) {
	begin := time.Now()
	res, err := http.DefaultTransport.RoundTrip(req)
	if err == nil {
		res.Body = &timed{res.Body, begin, &r.longest}
	}
	return res, err
}

// TestASlowRegistryIsWaitedFor is TestPatienceCountsFromTheLastByte with a registry on a real socket. If the machine
// paused it for longer than the read has patience, it is tried again with more.
func TestASlowRegistryIsWaitedFor(t *testing.T) {
	for patience := time.Second; ; patience *= 2 {
		const chunks = 20
		content := noise(64 << 10).Data
		registry := &partHost{content: content}
		registry.send = func(_ context.Context, w io.Writer, part []byte) {
			for begin := 0; begin < len(part); begin += len(content) / chunks {
				time.Sleep(2 * patience / chunks)
				_, _ = w.Write(part[begin:min(begin+len(content)/chunks, len(part))])
			}
		}
		server := httptest.NewServer(registry)
		transport := &timing{}
		b := openBlob(t, patience, len(content), docker.RegistryHost{Client: &http.Client{Transport: transport},
			Scheme: "http", Host: strings.TrimPrefix(server.URL, "http://"), Path: "/v2"})
		begin := time.Now()
		_, err := b.ReadAt(make([]byte, len(content)), 0)
		took := time.Since(begin)
		server.Close()
		if err == nil {
			if took < 2*patience {
				t.Errorf("the read took %v: the registry was not slow", took)
			}
			return
		}
		if longest := time.Duration(transport.longest.Load()); longest < patience/4 || patience > time.Minute {
			t.Fatalf("the read failed although bytes came all %v: %v", longest, err)
		}
	}
}
