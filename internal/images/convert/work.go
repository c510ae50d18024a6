// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/internal/base/tempdir"
)

// work is the folder of a conversion: finished layers that are not delivered yet, and records of the source's layers
// that were converted.
type work struct {
	dir       string
	temporary *tempdir.Dir // nil for a folder that is kept
}

// Folders of work.
const (
	workBlobs   = "blobs"
	workRecords = "records"
	workSpool   = "spool"
)

// openWork uses the folder resume, or a temporary one if that is empty.
func openWork(resume string) (w *work, err error) {
	w = &work{dir: resume}
	if resume == "" {
		if w.temporary, err = tempdir.Make("", "wangell-convert-", os.RemoveAll); err != nil {
			return nil, err
		}
		w.dir = w.temporary.Path
	}
	// Unfinished files of an earlier conversion are useless.
	if err := os.RemoveAll(w.path(workSpool)); err != nil {
		return nil, err
	}
	for _, d := range []string{workBlobs, workRecords, workSpool} {
		if err := os.MkdirAll(w.path(d), 0o700); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *work) path(names ...string) string {
	return filepath.Join(append([]string{w.dir}, names...)...)
}

// close removes what is not kept.
func (w *work) close() error {
	if w.temporary == nil {
		return os.RemoveAll(w.path(workSpool))
	}
	return w.temporary.Remove()
}

// blob returns the file of a finished blob.
func (w *work) blob(d digest.Digest) string { return w.path(workBlobs, d.Encoded()) }

// hasBlob reports whether a blob is there, whole.
func (w *work) hasBlob(d digest.Digest, size int64) bool {
	info, err := os.Stat(w.blob(d))
	return err == nil && info.Size() == size
}

// record returns the file of a record.
func (w *work) record(key string) string {
	return w.path(workRecords, digest.FromString(key).Encoded()+".json")
}

// recall reads a record. It reports whether there is one.
func (w *work) recall(key string, into any) bool {
	text, err := os.ReadFile(w.record(key))
	return err == nil && json.Unmarshal(text, into) == nil
}

// remember writes a record, if the folder is kept.
func (w *work) remember(key string, v any) error {
	if w.temporary != nil {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	temp := w.path(workSpool, filepath.Base(w.record(key)))
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temp, w.record(key))
}

// forget removes a blob that is delivered.
func (w *work) forget(d digest.Digest) error {
	if err := os.Remove(w.blob(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
