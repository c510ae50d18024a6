// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/decide/forecast"
)

// histories stores the histories of services with spec.sleep.predict: a file of at most forecast.MaxEncoded bytes for
// each, in the folder uses of the state folder. Only the newest text of a service is written, and the caller does not
// wait for it.
type histories struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	known   map[v1alpha1.Key]bool // services that have a file, or will
	pending map[v1alpha1.Key]string
	writing bool
	idle    sync.Cond // nothing is being written
}

// newHistories returns the histories in a state folder.
func newHistories(state string, log *slog.Logger) *histories {
	h := &histories{dir: filepath.Join(state, "uses"), log: log, known: map[v1alpha1.Key]bool{},
		pending: map[v1alpha1.Key]string{}}
	h.idle.L = &h.mu
	return h
}

// file is the file of a service. Neither part of a name has a dot.
func (h *histories) file(k v1alpha1.Key) string {
	namespace, name := k.Split()
	return filepath.Join(h.dir, namespace+"."+name)
}

// of returns the stored history of a service; empty if there is none, or if it cannot be read.
func (h *histories) of(k v1alpha1.Key) string {
	if h == nil {
		return ""
	}
	f, err := os.Open(h.file(k))
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	var text []byte
	if err == nil {
		defer f.Close()
		text, err = io.ReadAll(io.LimitReader(f, forecast.MaxEncoded+1))
	}
	if err != nil {
		h.log.Warn("the history of a service cannot be read: it begins anew", "service", k, "error", err)
	}
	return string(text)
}

// record stores the history of a service. It does not block.
func (h *histories) record(k v1alpha1.Key, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending[k] = text
	if !h.writing {
		h.writing = true
		go h.write()
	}
}

// write writes what is pending, until nothing is.
func (h *histories) write() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.pending) > 0 {
		for k, text := range h.pending {
			delete(h.pending, k)
			if !h.known[k] {
				continue // it was removed
			}
			h.mu.Unlock()
			err := os.MkdirAll(h.dir, 0o755)
			if err == nil {
				err = atomicfile.Write(h.file(k), []byte(text))
			}
			if err != nil {
				h.log.Warn("the history of a service cannot be stored", "service", k, "error", err)
			}
			h.mu.Lock()
		}
	}
	h.writing = false
	h.idle.Broadcast()
}

// follow keeps histories of the services in a list that ask for it, and removes all others.
func (h *histories) follow(list []*v1alpha1.WangellService) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	known := map[v1alpha1.Key]bool{}
	for _, s := range list {
		if s.Spec.Sleep != nil && s.Spec.Sleep.Predict {
			known[v1alpha1.KeyOf(s)] = true
		}
	}
	h.known = known
	for h.writing {
		h.idle.Wait() // it may be writing the history of a removed service
	}
	files, err := os.ReadDir(h.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.log.Warn("old histories of services cannot be removed", "folder", h.dir, "error", err)
	}
	for _, f := range files {
		namespace, name, _ := strings.Cut(f.Name(), ".")
		if h.known[v1alpha1.Key(namespace+"/"+name)] {
			continue
		}
		if err := os.Remove(filepath.Join(h.dir, f.Name())); err != nil {
			h.log.Warn("the history of a service cannot be removed", "error", err)
		}
	}
}

// close returns once everything is written.
func (h *histories) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.writing {
		h.idle.Wait()
	}
}
