// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"context"
	"errors"
	"os"
	"testing"

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
