// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"time"

	"github.com/opencontainers/go-digest"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/images/lazy/trace"
)

// optimiseLater rewrites the image of a pod once the pod's first reads are recorded: when the pod has ended, or when
// recording is over. It returns when that is done, or the Runtime is closed.
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
