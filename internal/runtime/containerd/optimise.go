// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/images/lazy/trace"
)

const (
	// optimiseAgain is the least pause after a failure, for the same image.
	optimiseAgain = time.Hour
	// optimisedFile is the file in the state folder with the results.
	optimisedFile = "optimised.json"
)

// optimiser rewrites images, one at a time, and remembers the results.
type optimiser struct {
	run   func(context.Context, Optimisation) (digest.Digest, error)
	file  string
	turn  sync.Mutex // held while an image is rewritten
	after time.Duration

	mu     sync.Mutex
	done   map[string]optimised // by the full name of the image
	paused map[string]time.Time // images that failed, and when they may be tried again
}

// optimised is the result for an image.
type optimised struct {
	// Source is the digest of the image; Name names the result by its digest.
	Source digest.Digest `json:"source"`
	Name   string        `json:"name"`
}

// newOptimiser returns an optimiser with the results of earlier processes.
func newOptimiser(cfg Config) (*optimiser, error) {
	o := &optimiser{
		run: cfg.Optimise, file: filepath.Join(cfg.StateDir, optimisedFile), after: trace.Longest + time.Minute,
		done: map[string]optimised{}, paused: map[string]time.Time{},
	}
	text, err := os.ReadFile(o.file)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &o.done)
	}
	if err != nil {
		return nil, fmt.Errorf("images that were optimised: %s: %w: remove the file", o.file, err)
	}
	return o, nil
}

// of returns the result for an image.
func (o *optimiser) of(name string) (optimised, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	got, ok := o.done[name]
	return got, ok
}

// due reports whether an image should be rewritten now.
func (o *optimiser) due(name string, source digest.Digest, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.done[name].Source != source && !now.Before(o.paused[name])
}

// note records a result.
func (o *optimiser) note(name string, result optimised) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done[name] = result
	text, err := json.MarshalIndent(o.done, "", "  ")
	if err == nil {
		err = atomicfile.Write(o.file, text)
	}
	return err
}

// pause records a failure.
func (o *optimiser) pause(name string, until time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.paused[name] = until
}

// optimiseLater rewrites the image of a pod once the pod's first reads are recorded: when the pod has ended, or when
// recording is over. It returns when that is done, or when the Runtime is closed.
func (r *Runtime) optimiseLater(s *v1alpha1.WangellService, info imageInfo, ended <-chan struct{}) {
	o := r.images.optimiser
	name, err := FullName(s.Spec.Image)
	if err != nil || name != info.name || !o.due(name, info.digest, time.Now()) {
		return // it runs the result, or there is one
	}
	select {
	case <-ended:
	case <-time.After(o.after):
	case <-r.ctx.Done():
		return
	}
	select { // the snapshotter writes what it has recorded a moment later
	case <-time.After(2 * trace.Delay):
	case <-r.ctx.Done():
		return
	}
	o.turn.Lock()
	defer o.turn.Unlock()
	if r.ctx.Err() != nil || !o.due(name, info.digest, time.Now()) {
		return
	}
	log := r.cfg.Log.With("service", string(v1alpha1.KeyOf(s)), "image", name)
	begin := time.Now()
	result, err := r.optimise(name, info.digest)
	switch {
	case r.ctx.Err() != nil:
		return
	case err != nil:
		o.pause(name, time.Now().Add(optimiseAgain))
		log.Warn("image is not optimised and used as it is; tried again in an hour at the earliest; or remove "+
			"imagePull.optimise", "error", err)
		return
	}
	log.Info("image is optimised: the next pods use the result", "result", result, "took", time.Since(begin))
	if _, err := r.images.ensure(r.ctx, s, nil); err != nil && r.ctx.Err() == nil {
		log.Warn("the optimised image cannot be pulled ahead of the next pod", "error", err)
	}
}

// optimise rewrites an image and records the result, which it returns by its digest.
func (r *Runtime) optimise(name string, source digest.Digest) (string, error) {
	to, err := imageref.Optimised(name)
	if err != nil {
		return "", err
	}
	root := SharedLazyRoot
	if r.own != nil {
		root = LazyRoot(r.cfg.StateDir)
	}
	d, err := r.images.optimiser.run(r.ctx, Optimisation{
		Source: imageref.Fixed(name, source.String()), Destination: to, Root: root,
	})
	if err != nil {
		return "", err
	}
	result := optimised{Source: source, Name: imageref.Fixed(to, d.String())}
	return result.Name, r.images.optimiser.note(name, result)
}
