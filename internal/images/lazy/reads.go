// SPDX-License-Identifier: Apache-2.0

package lazy

import (
	"io"
	"time"

	"github.com/containerd/stargz-snapshotter/metadata"
)

// direct is a metadata.Reader of a blob. What is opened and read through it is recorded, unless a Clone of it does so,
// which unpacks what no program has asked for.
type direct struct {
	metadata.Reader
	blob *Blob
}

// watchedReads is a blob whose reads are recorded, except those of the threads that unpack in the background.
type watchedReads struct{ *Blob }

// ReadAt implements io.ReaderAt.
func (w watchedReads) ReadAt(p []byte, off int64) (int, error) {
	if n := min(int64(len(p)), w.size-off); off >= 0 && n > 0 && !w.store.unpacksHere() {
		w.recorder.read(blocksOf(off, n), time.Now())
	}
	return w.Blob.ReadAt(p, off)
}

// OpenFileWithPreReader implements metadata.Reader.
func (d direct) OpenFileWithPreReader(id uint32, pre func(uint32, int64, int64, string, io.Reader) error) (
	metadata.File, error) {
	d.blob.recorder.open(id, time.Now())
	var f metadata.File
	err := d.blob.retried(func() (err error) {
		f, err = d.Reader.OpenFileWithPreReader(id, pre)
		return err
	})
	if err != nil {
		return nil, err
	}
	return watchedFile{f, d.blob, id}, nil
}

// watchedFile is a file whose reads in progress are tracked.
type watchedFile struct {
	metadata.File
	blob *Blob
	id   uint32
}

// ReadAt implements metadata.File.
func (f watchedFile) ReadAt(p []byte, off int64) (int, error) {
	defer f.blob.reads(f.id)()
	return f.blob.readChunk(f.File, p, off)
}

// Clone implements metadata.Reader. The Clone shares the table of contents, which is large, and reads the same blob.
func (d direct) Clone(*io.SectionReader) (metadata.Reader, error) {
	return idle{d.Reader, d.blob.store}, nil
}
