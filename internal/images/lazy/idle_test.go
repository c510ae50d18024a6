// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/metadata"
	"github.com/containerd/stargz-snapshotter/metadata/memory"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Unpacking in the background has threads of its own, which are nicer than the others.
func TestUnpackingInTheBackgroundIsNice(t *testing.T) {
	s, err := newStore(Config{Root: t.TempDir(), Workers: 1, Piece: DefaultPiece})
	if err != nil {
		t.Fatal(err)
	}
	niceness := func() int {
		// The system call returns 20 less the niceness.
		got, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid())
		if err != nil {
			t.Error(err)
		}
		return 20 - got
	}
	own, err := unix.Getpriority(unix.PRIO_PROCESS, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	own = 20 - own
	for range 4 {
		var got int
		if err := s.whenIdle(func() { got = niceness() }); err != nil {
			t.Fatal(err)
		}
		if got < unpackNice || got <= own && own < unpackNice {
			t.Errorf("its niceness is %d, that of others %d", got, own)
		}
	}
	s.close()
	if err := s.whenIdle(func() { t.Error("it goes on after the end") }); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// What is unpacked in the background counts as read by no program, and needs no second table of contents.
func TestUnpackingInTheBackgroundIsNotRecorded(t *testing.T) {
	content := noise(1000).Data // a chunk
	layer := packFile(t, content, estargz.NewGzipCompressor())
	host := &partHost{name: testRegistry, content: layer, send: func(_ context.Context, w io.Writer, part []byte) {
		_, _ = w.Write(part)
	}}
	b := openBlob(t, time.Minute, len(layer), host.inMemory(t))
	packed, option, err := faster(watchedReads{b}, b.size)
	if err != nil {
		t.Fatal(err)
	}
	r, err := memory.NewReader(packed, option)
	if err != nil {
		t.Fatal(err)
	}
	b.recorder.names(r)
	b.recorder.begin("a")
	d := direct{r, b}
	clone, err := d.Clone(nil)
	if err != nil || clone.(idle).Reader != r {
		t.Fatalf("the table of contents was read again: %v", err)
	}
	id, _, err := r.GetChild(r.RootID(), "f")
	if err != nil {
		t.Fatal(err)
	}
	recorded := func() int {
		b.recorder.mu.Lock()
		defer b.recorder.mu.Unlock()
		return len(b.recorder.trace.Blocks)
	}
	// A program opens the file, without reading it, so that recording begins.
	if _, err := d.OpenFileWithPreReader(id, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		from metadata.Reader
		want int
	}{{"background", clone, 0}, {"program", d, 1}} {
		f, err := c.from.OpenFileWithPreReader(id, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(content))
		if _, err := f.ReadAt(got, 0); err != nil && err != io.EOF || !bytes.Equal(got, content) {
			t.Errorf("%s: the file differs: %v", c.name, err)
		}
		if n := recorded(); n != c.want {
			t.Errorf("%s: %d blocks are recorded, want %d", c.name, n, c.want)
		}
	}
}

// openFS is a file system of which every file can be opened.
type openFS struct{ fuse.RawFileSystem }

// Open implements fuse.RawFileSystem.
func (openFS) Open(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	return fuse.OK
}

func TestKernelNeedNotTellThatAFileIsClosed(t *testing.T) {
	var out fuse.OpenOut
	if status := (readOnly{openFS{}}).Open(nil, &fuse.OpenIn{}, &out); status != fuse.OK ||
		out.OpenFlags != fuse.FOPEN_KEEP_CACHE|fuse.FOPEN_NOFLUSH {
		t.Errorf("%v, flags %#x", status, out.OpenFlags)
	}
}
