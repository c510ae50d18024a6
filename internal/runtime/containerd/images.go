// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/client"
	apievents "github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/runtime"
)

// imageInfo is what the start of a container needs from an unpacked image.
type imageInfo struct {
	name   string // the full reference, as in containerd
	digest digest.Digest
	chain  string // name of the snapshot of the topmost layer
	// snapshotter has unpacked the image, or mounts it.
	snapshotter string
	config      ocispec.ImageConfig
	// architecture is named as in GOARCH.
	architecture string
}

// imageCache holds the images that services use. watchImages follows images that something else removes or replaces in
// containerd.
type imageCache struct {
	ctx    context.Context // of pulls: they outlive the calls that wait for them
	client *client.Client
	puller puller
	lazy   *lazyPlugin
	// snapshotter is the default of services, and usable has the snapshotters that containerd can use.
	snapshotter string
	usable      []string
	pulls       singleflight.Group // by wish
	// optimiser knows which images have an optimised version.
	optimiser *optimiser

	mu        sync.Mutex
	known     map[wish]imageInfo
	inFull    map[string]bool                // names of images with files that could not be fetched lazily
	listeners map[string][]*progressListener // of pulls that run, by name
}

// progressListener makes a progress function comparable, by address.
type progressListener struct{ report runtime.Progress }

// newImageCache returns an empty cache. Pulls end with ctx.
func newImageCache(ctx context.Context, c *client.Client, lazy *lazyPlugin, o *optimiser, usable []string,
	cfg Config) *imageCache {
	return &imageCache{
		ctx: ctx, client: c, puller: puller{c, cfg.InsecureRegistries}, lazy: lazy, optimiser: o,
		snapshotter: cfg.snapshotter(), usable: usable,
		known: map[wish]imageInfo{}, inFull: map[string]bool{}, listeners: map[string][]*progressListener{},
	}
}

// ensure ensures that the image of s is on the machine, following the pull policy, and returns its details.
func (c *imageCache) ensure(ctx context.Context, s *v1alpha1.WangellService,
	progress runtime.Progress) (imageInfo, error) {
	if name := c.optimisedOf(ctx, s); name != "" {
		info, err := c.ensureImage(ctx, s, name, true, s.Spec.ImagePullPolicy, progress)
		if err == nil || ctx.Err() != nil {
			return info, err
		}
		c.lazy.log.Warn("the optimised image cannot be used; the service uses the original", "service",
			v1alpha1.KeyOf(s), "image", name, "error", err)
	}
	info, err := c.ensureImage(ctx, s, s.Spec.Image, s.Spec.PullsLazily(), s.Spec.ImagePullPolicy, progress)
	if err != nil {
		return info, fmt.Errorf("service %s: image %q: %w", v1alpha1.KeyOf(s), s.Spec.Image, err)
	}
	return info, nil
}

// snapshotterOf returns the snapshotter that unpacks the images of a service.
func (c *imageCache) snapshotterOf(s *v1alpha1.WangellService) (string, error) {
	want := cmp.Or(s.Spec.Snapshotter(), c.snapshotter)
	if want != c.snapshotter && !slices.Contains(c.usable, want) {
		return "", &imageError{fmt.Sprintf("spec.layer.snapshotter: containerd cannot use %q: choose one of %s, or see "+
			"wangell doctor --snapshotter %s", want, strings.Join(c.usable, ", "), want), errors.ErrUnsupported}
	}
	return want, nil
}

// ensureImage is ensure for one of the images of a service, or its substitute.
func (c *imageCache) ensureImage(ctx context.Context, s *v1alpha1.WangellService, ref string, lazy bool,
	policy corev1.PullPolicy, progress runtime.Progress) (imageInfo, error) {
	name, err := FullName(ref)
	if err != nil {
		return imageInfo{}, err
	}
	snapshotter, err := c.snapshotterOf(s)
	if err != nil {
		return imageInfo{}, err
	}
	c.mu.Lock()
	w := wish{name, snapshotter, lazy && !c.inFull[name]}
	c.mu.Unlock()
	if policy != corev1.PullAlways {
		c.mu.Lock()
		info, ok := c.known[w]
		c.mu.Unlock()
		if ok {
			return info, nil
		}
		info, err := c.look(ctx, w)
		if err == nil || !errdefs.IsNotFound(err) {
			return info, err
		}
		if policy == corev1.PullNever && errors.Is(err, errParts) {
			return info, &imageError{"read: " + err.Error() + ": load it again (wangell image load)", err}
		}
		if policy == corev1.PullNever {
			return info, &imageError{
				"not on this machine and imagePullPolicy is Never: load it (wangell image load) or change the policy", err,
			}
		}
	}
	if err := c.pull(ctx, w, progress); err != nil {
		return imageInfo{}, err
	}
	return c.look(ctx, w)
}

// pull pulls an image; in full if it is wanted lazily and that is not possible.
func (c *imageCache) pull(ctx context.Context, w wish, progress runtime.Progress) error {
	if w.lazy {
		err := c.lazy.ready(ctx)
		if err == nil {
			err = patiently(ctx, func() error { return c.pullOnce(ctx, w, progress) })
			switch {
			case errors.Is(err, errPlain):
				err = errPlain
			case ctx.Err() != nil || !errors.Is(err, runtime.ErrUnavailable):
				return err
			}
		}
		c.lazy.log.Warn("imagePull.mode is Lazy, but the image has to be pulled in full before it runs", "image", w.name,
			"error", err)
	}
	w.lazy = false
	return c.pullOnce(ctx, w, progress)
}

// look reads an image from containerd, unpacks it if necessary, and caches it. The error is also "not found" if the
// image is wanted in full and only the snapshotter for lazy pulls has it.
func (c *imageCache) look(ctx context.Context, w wish) (imageInfo, error) {
	got, err := c.client.ImageService().Get(ctx, w.name)
	if err != nil {
		return imageInfo{}, native(err)
	}
	img := client.NewImage(c.client, got)
	from, err := c.unpacked(ctx, img, w)
	if err != nil {
		return imageInfo{}, err
	}
	spec, err := img.Spec(ctx)
	if err != nil {
		return imageInfo{}, imageFailure(err, "read configuration")
	}
	info := imageInfo{
		name: w.name, digest: got.Target.Digest, chain: identity.ChainID(spec.RootFS.DiffIDs).String(),
		snapshotter: from, config: spec.Config, architecture: spec.Architecture,
	}
	c.mu.Lock()
	c.known[w] = info
	c.mu.Unlock()
	return info, nil
}

// unpacked returns the snapshotter that has an image, after unpacking the image if necessary. A complete image is used
// as it is, even if it is wanted lazily.
func (c *imageCache) unpacked(ctx context.Context, img client.Image, w wish) (string, error) {
	full, err := img.IsUnpacked(ctx, w.snapshotter)
	if err != nil {
		return "", imageFailure(err, "unpack")
	}
	if full {
		return w.snapshotter, nil
	}
	if w.lazy && c.lazy.ready(ctx) == nil {
		if mounted, err := img.IsUnpacked(ctx, lazySnapshotter); err == nil && mounted {
			return lazySnapshotter, nil
		}
	}
	_, _, _, missing, err := images.Check(ctx, c.client.ContentStore(), img.Target(), img.Platform())
	if err != nil {
		return "", imageFailure(err, "read")
	}
	if len(missing) > 0 {
		return "", fmt.Errorf("%d of its %w", len(missing), errParts)
	}
	if err := img.Unpack(ctx, w.snapshotter); err != nil {
		return "", imageFailure(err, "unpack")
	}
	return w.snapshotter, nil
}

// errParts is why an image that has a name cannot be used: somebody has removed its content.
var errParts = fmt.Errorf("parts are missing on this machine: %w", errdefs.ErrNotFound)

// forget makes the next ensure ask containerd again.
func (c *imageCache) forget(ref string) {
	if name, err := FullName(ref); err == nil {
		c.mu.Lock()
		maps.DeleteFunc(c.known, func(w wish, _ imageInfo) bool { return w.name == name })
		c.mu.Unlock()
	}
}

// pullInFull makes the next container wait for the complete image, even if it is wanted lazily.
func (c *imageCache) pullInFull(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFull[name] = true
	maps.DeleteFunc(c.known, func(w wish, _ imageInfo) bool { return w.name == name && w.lazy })
}

// pullOnce pulls an image. Concurrent calls for the same image share one pull, which goes on if one of them is
// cancelled.
func (c *imageCache) pullOnce(ctx context.Context, w wish, progress runtime.Progress) error {
	name := w.name
	if progress != nil {
		l := &progressListener{progress}
		c.mu.Lock()
		c.listeners[name] = append(c.listeners[name], l)
		c.mu.Unlock()
		defer c.removeListener(name, l)
	}
	done := c.pulls.DoChan(w.String(), func() (any, error) {
		return nil, c.puller.pull(c.ctx, w, func(finished, total int64) {
			c.mu.Lock()
			listeners := append([]*progressListener(nil), c.listeners[name]...)
			c.mu.Unlock()
			for _, l := range listeners {
				l.report(name, finished, total)
			}
		})
	})
	select {
	case result := <-done:
		return result.Err
	case <-ctx.Done():
		return &imageError{"pull not finished: " + ctx.Err().Error(), ctx.Err()}
	}
}

func (c *imageCache) removeListener(name string, l *progressListener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var rest []*progressListener
	for _, other := range c.listeners[name] {
		if other != l {
			rest = append(rest, other)
		}
	}
	if len(rest) == 0 {
		delete(c.listeners, name)
		return
	}
	c.listeners[name] = rest
}

// optimisedOf returns the name of the image that a service uses in place of its own; empty if that is not wanted, not
// made yet, or made from an earlier image of the same name.
func (c *imageCache) optimisedOf(ctx context.Context, s *v1alpha1.WangellService) string {
	name, err := FullName(s.Spec.Image)
	if err != nil || !s.Spec.Optimises() {
		return ""
	}
	o, ok := c.optimiser.of(name)
	if !ok {
		return ""
	}
	got, err := c.client.ImageService().Get(ctx, name)
	if err == nil && got.Target.Digest != o.Source {
		return ""
	}
	return o.Name // also if the image itself was removed, as nobody needs it any more
}

// standsFor reports whether an image, given by its full name, is the one that a service names, or its optimised
// version.
func (c *imageCache) standsFor(name, image string) bool {
	own, err := FullName(image)
	if err != nil {
		return false
	}
	o, _ := c.optimiser.of(own)
	return name == own || name != "" && name == o.Name
}

// watchPause is the pause before the next subscription to events after containerd has ended.
const watchPause = time.Second

// watchImages follows images that other processes load, pull or remove, as 'wangell image' does, until Close: the next
// pod looks their names up again.
func (r *Runtime) watchImages() {
	for r.ctx.Err() == nil {
		r.followImages()
		select {
		case <-r.ctx.Done():
		case <-time.After(watchPause):
		}
	}
}

// followImages returns when containerd ends, or with Close.
func (r *Runtime) followImages() {
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	stream, failed := r.client.EventService().Subscribe(ctx,
		fmt.Sprintf("namespace==%s,topic~=^/images/", r.cfg.Namespace))
	r.images.forgetAll() // earlier changes are not reported
	for {
		select {
		case e := <-stream:
			if name := imageOfEvent(e); name != "" {
				r.images.forget(name)
				r.keeper.kick() // prepared pods of the image are made anew
			}
		case <-failed:
			return
		}
	}
}

// imageOfEvent returns the name of the image that an event is about; empty if it is about none.
func imageOfEvent(e *apievents.Envelope) string {
	if e == nil {
		return ""
	}
	got, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		return ""
	}
	switch v := got.(type) {
	case *events.ImageCreate:
		return v.Name
	case *events.ImageUpdate:
		return v.Name
	case *events.ImageDelete:
		return v.Name
	}
	return ""
}

// forgetAll makes the next ensure of each image ask containerd again.
func (c *imageCache) forgetAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.known)
}
