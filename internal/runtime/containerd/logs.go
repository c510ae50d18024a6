// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// The log of a container of a service is one file, which the shims append to. Every logLook, a file above logLimit is
// rotated.
const (
	logLimit = 10 << 20 // bytes
	logLook  = 10 * time.Second
)

// Logs copies the log of one of the service's containers to w; see runtime.Runtime. With Follow, the end of ctx is not
// an error. The log of a container that never ran is empty.
func (r *Runtime) Logs(ctx context.Context, k v1alpha1.Key, w io.Writer, options runtime.LogOptions) error {
	name := r.cfg.containerLog(k, options.Container)
	if err := copyLog(ctx, name, w, options.Tail, options.Follow); err != nil {
		return fmt.Errorf("log of service %s: %w", k, err)
	}
	return nil
}

// rotateLogs rotates the logs of the running services, until Close.
func (r *Runtime) rotateLogs() {
	tick := time.NewTicker(logLook)
	defer tick.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-tick.C:
		}
		names := map[string]bool{}
		r.mu.Lock()
		for _, p := range r.pods {
			names[r.cfg.logFile(p.Service)] = true
			for _, m := range r.members[p.ID] {
				names[r.cfg.containerLog(m.service, m.name)] = true
			}
		}
		r.mu.Unlock()
		for name := range names {
			if err := rotate(name, logLimit); err != nil {
				r.cfg.Log.Warn("cannot rotate a log", "file", name, "error", err)
			}
		}
	}
}

// logRotated is added to the name of a log for the copy that rotate keeps.
const logRotated = ".1"

// makeLog creates a log unless it exists.
func makeLog(name string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make the folder of logs: %w", err)
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make the log of the service: %w", err)
	}
	return f.Close()
}

// fileSize returns the size of a file in bytes; 0 if it does not exist.
func fileSize(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Size()
}

// copyLog implements Runtime.Logs for one file.
func copyLog(ctx context.Context, name string, w io.Writer, tail int, follow bool) error {
	var changed *fsnotify.Watcher
	if follow {
		// The watch begins before the file is read, so that no change is missed. It is on the folder, because the file
		// may not exist yet.
		var err error
		if changed, err = fsnotify.NewWatcher(); err != nil {
			return err
		}
		defer changed.Close()
		if err := changed.Add(filepath.Dir(name)); err != nil {
			return err
		}
	}
	offset, err := copyTail(name, w, tail)
	if err != nil || !follow {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-changed.Errors:
			return err
		case e := <-changed.Events:
			if e.Name != name || !e.Has(fsnotify.Write|fsnotify.Create) {
				continue
			}
		}
		if size := fileSize(name); size < offset {
			offset = 0 // rotated
		}
		n, err := copyFrom(name, offset, w)
		if err != nil {
			return err
		}
		offset += n
	}
}

// copyTail copies the last lines of a log, including its rotated copy, and returns how far it has read the file.
func copyTail(name string, w io.Writer, tail int) (int64, error) {
	begin, lines, err := lastLines(name, tail)
	if err != nil {
		return 0, err
	}
	older := -1
	if tail >= 0 {
		older = tail - lines
	}
	if older != 0 {
		begin, _, err := lastLines(name+logRotated, older)
		if err != nil {
			return 0, err
		}
		if _, err := copyFrom(name+logRotated, begin, w); err != nil {
			return 0, err
		}
	}
	n, err := copyFrom(name, begin, w)
	return begin + n, err
}

// lastLines returns the offset of the last n lines of a file and their number, which is lower in a shorter file; n < 0
// means all. A file that does not exist is empty.
func lastLines(name string, n int) (begin int64, lines int, err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	} else if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || n < 0 || size == 0 {
		return 0, 0, err
	}
	if n == 0 {
		return size, 0, nil
	}
	buffer := make([]byte, 64<<10)
	for at := size; at > 0; {
		part := buffer[:min(at, int64(len(buffer)))]
		at -= int64(len(part))
		if _, err := f.ReadAt(part, at); err != nil {
			return 0, 0, err
		}
		for i := bytes.LastIndexByte(part, '\n'); i >= 0; i = bytes.LastIndexByte(part[:i], '\n') {
			if after := at + int64(i) + 1; after != size { // the newline at the very end ends the last line
				if lines++; lines == n {
					return after, lines, nil
				}
			}
		}
	}
	return 0, lines + 1, nil
}

func copyFrom(name string, offset int64, w io.Writer) (int64, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return 0, err
	}
	return io.Copy(w, f)
}

// readTail reads at most n bytes from the end of a file, and nothing before begin unless the file was emptied since. It
// returns an empty string if the file cannot be read.
func readTail(name string, begin int64, n int) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	if begin > size {
		begin = 0
	}
	text := make([]byte, min(size-begin, int64(n)))
	read, _ := f.ReadAt(text, size-int64(len(text)))
	return string(text[:read])
}

// LastLine returns the last line that was written to a log from begin on, a position in bytes.
func LastLine(name string, begin int64) string { return lastLine(readTail(name, begin, 2048)) }

// lastLine returns the last line of text that is not empty.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// rotate copies a file of more than limit bytes to its rotated name and empties it. Lines written in between are lost.
func rotate(name string, limit int64) error {
	if fileSize(name) <= limit {
		return nil
	}
	temporary := name + ".new"
	f, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	_, err = copyFrom(name, 0, f)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(temporary, name+logRotated)
	}
	if err != nil {
		_ = os.Remove(temporary)
	}
	// The file is emptied even then: a full disk must not be filled further.
	return errors.Join(err, os.Truncate(name, 0))
}
