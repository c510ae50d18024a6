// SPDX-License-Identifier: Apache-2.0

// Package live pulls an image into a throw-away containerd, and records what package pullstat needs to explain where
// the time went: containerd's events and log, the state of its content store, and a second pass over each layer.
package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"wangell.loutres.me/internal/images/erofs"
	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/internal/runtime/containerd"
)

// Run pulls an image and records the pull. It needs root. When it returns, also with an error or because ctx ended,
// the throw-away containerd, its mounts and its files are gone.
func Run(ctx context.Context, o Options) (rec pullstat.Recording, err error) {
	if os.Geteuid() != 0 {
		return rec, errors.New("needs root, to start a containerd and unpack as it does: use sudo")
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	from, err := findSource(o.Image, o.Insecure)
	if err != nil {
		return rec, err
	}
	defer from.close()
	o.Progress(StageStart, 0, 0)
	s, err := startScratch(ctx, o, from.plain())
	if err == nil {
		defer func() { err = errors.Join(err, s.close()) }()
		rec, err = s.record(ctx, o, from)
	}
	switch {
	case err == nil:
		return rec, nil
	case ctx.Err() != nil: // its consequences say less
		return rec, fmt.Errorf("analyse %s: %w", o.Image, ctx.Err())
	}
	return rec, fmt.Errorf("analyse %s: %w", o.Image, err)
}

// record pulls the image into s, and makes the second pass.
func (s *scratch) record(ctx context.Context, o Options, from source) (rec pullstat.Recording, err error) {
	rec = pullstat.Recording{Image: o.Image, Via: o.Via, Cores: runtime.NumCPU()}
	version, err := s.client.Version(ctx)
	if err != nil {
		return rec, err
	}
	rec.Containerd, _, _ = strings.Cut(strings.TrimPrefix(version.Version, "v"), "~")
	if o.Unpackers > 1 && !pullstat.UnpacksInParallel(rec.Containerd) {
		return rec, fmt.Errorf("containerd %s cannot unpack %d layers at once: use 2.2.3 or later, or one unpacker",
			rec.Containerd, o.Unpackers)
	}
	rec.Unpackers = o.Unpackers
	if s.snapshotter != containerd.DefaultSnapshotter {
		rec.Snapshotter = s.snapshotter
	}
	rec.GzipHelper = gzipHelper(rec.Containerd, o.path())
	w, err := watch(ctx, s.client, func(done, total int64) { o.Progress(StagePull, done, total) })
	if err != nil {
		return rec, err
	}
	defer w.close()
	pull := s.pullClient
	if o.Via == ViaCRI {
		pull = s.pullCRI // the number of unpackers is in containerd's configuration
	}
	before, err := s.proc.CPU()
	if err != nil {
		return rec, err
	}
	rec.Begin = time.Now()
	fetches, err := pull(ctx, from, o.Unpackers)
	rec.End = time.Now()
	if err != nil {
		return rec, explain(from.ref, err)
	}
	after, err := s.proc.CPU()
	if err != nil {
		return rec, err
	}
	rec.CPU = after - before
	if err := w.barrier(ctx, "end"); err != nil {
		return rec, err
	}
	w.close()
	if rec.Layers, err = s.layers(ctx, from.ref); err != nil {
		return rec, err
	}
	stored, err := s.storedTimes(ctx, rec.Layers)
	if err != nil {
		return rec, err
	}
	// Idle or not, containerd must not compete with the second pass.
	if err := s.stop(); err != nil {
		return rec, err
	}
	logged, err := s.logged()
	if err != nil {
		return rec, err
	}
	rec.Events = eventsAbout(rec.Layers, w.collected(), fetches, logged, stored)
	if o.NoSecondPass {
		return rec, nil
	}
	err = s.secondPass(ctx, &rec, func(done, total int64) { o.Progress(StageSecond, done, total) })
	if err == nil && s.snapshotter != erofs.Snapshotter {
		rec.Erofs, err = s.tryErofs(ctx, rec, o.path())
	}
	return rec, err
}

// eventsAbout returns the events about the layers among several lists.
func eventsAbout(layers []pullstat.Layer, lists ...[]pullstat.Event) []pullstat.Event {
	about := map[string]bool{}
	for _, l := range layers {
		about[l.Digest], about[l.ChainID] = true, true
	}
	var found []pullstat.Event
	for _, list := range lists {
		for _, e := range list {
			if about[e.ID] {
				found = append(found, e)
			}
		}
	}
	return found
}

// logged returns the events in containerd's log.
func (s *scratch) logged() ([]pullstat.Event, error) {
	f, err := os.Open(s.logFile())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return logEvents(f)
}

// gzipHelper returns the program in the folders of path that a version of containerd decompresses gzip with; empty:
// none.
func gzipHelper(version, path string) string {
	for _, h := range pullstat.GzipHelpers(version) {
		for _, dir := range filepath.SplitList(path) {
			if _, err := exec.LookPath(filepath.Join(dir, h.Program)); err == nil && filepath.IsAbs(dir) {
				return h.Program
			}
		}
	}
	return ""
}
