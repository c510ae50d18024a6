// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"io"
	"runtime"

	"github.com/containerd/stargz-snapshotter/metadata"
	"golang.org/x/sys/unix"
)

// unpackNice is the niceness of the threads that unpack layers in the background: reads of files, which also have to
// be unpacked, and programs of the same cgroup go first, but unpacking is never starved.
const unpackNice = 10

// unpackThread runs what whenIdle is given, on a thread of its own, until the store ends.
func (s *Store) unpackThread() {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	thread := unix.Gettid()
	s.unpackers.Store(thread, true)
	defer s.unpackers.Delete(thread)
	// The system call returns 20 less the niceness. Without this, unpacking only competes more.
	if got, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil && 20-got < unpackNice {
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, unpackNice) // of this thread
	}
	for {
		select {
		case f := <-s.unpacks:
			f()
		case <-s.ctx.Done():
			return
		}
	}
}

// unpacksHere reports whether the caller runs on one of the threads of unpackThread.
func (s *Store) unpacksHere() bool {
	_, is := s.unpackers.Load(unix.Gettid())
	return is
}

// whenIdle runs f on one of the threads of unpackThread, and returns once it has returned; or with the error of the
// store's context, if that ends first.
func (s *Store) whenIdle(f func()) error {
	done := make(chan struct{})
	select {
	case s.unpacks <- func() { defer close(done); f() }:
		<-done
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// idle is a metadata.Reader of files that are unpacked in the background.
type idle struct {
	metadata.Reader
	store *Store
}

// OpenFileWithPreReader implements metadata.Reader.
func (i idle) OpenFileWithPreReader(id uint32, pre func(uint32, int64, int64, string, io.Reader) error) (
	metadata.File, error) {
	f, err := i.Reader.OpenFileWithPreReader(id, pre)
	if err != nil {
		return nil, err
	}
	return idleFile{f, i.store}, nil
}

// idleFile is one of these files.
type idleFile struct {
	metadata.File
	store *Store
}

// ReadAt implements metadata.File.
func (f idleFile) ReadAt(p []byte, off int64) (n int, err error) {
	if ended := f.store.whenIdle(func() { n, err = f.File.ReadAt(p, off) }); ended != nil {
		return 0, ended
	}
	return n, err
}
