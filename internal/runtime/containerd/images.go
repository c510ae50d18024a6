// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/image"
	"wangell.loutres.me/internal/runtime"
)

// imageInfo is what starting a container needs to know of an unpacked image.
type imageInfo struct {
	name   string // the whole reference, as containerd knows it
	digest digest.Digest
	chain  string // the snapshot of its topmost layer
	config ocispec.ImageConfig
	// architecture is the image's, in Go's words.
	architecture string
}

// imageCache knows the images that services use. An image that somebody removes or replaces in containerd by
// other means is noticed when a container is to be made of it.
type imageCache struct {
	r     *Runtime
	pulls singleflight.Group

	mu        sync.Mutex
	known     map[string]imageInfo           // by name
	listeners map[string][]*progressListener // of pulls that run, by name
}

// progressListener is compared by its address, functions cannot be.
type progressListener struct{ tell runtime.Progress }

func (c *imageCache) init(r *Runtime) {
	c.r, c.known, c.listeners = r, map[string]imageInfo{}, map[string][]*progressListener{}
}

// imageError says what is wrong with the image of a service. It wraps runtime.ErrImage without its words.
type imageError struct {
	text  string
	cause error
}

func (e *imageError) Error() string   { return e.text }
func (e *imageError) Unwrap() []error { return []error{runtime.ErrImage, e.cause} }

// normalized gives a reference its registry and tag: "nginx" is "docker.io/library/nginx:latest".
func normalized(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", &imageError{fmt.Sprintf("%v: write [REGISTRY/]NAME[:TAG]", err), err}
	}
	return named.String(), nil
}

// ensure makes sure that the image of s is there, as the pull policy says, and tells what it is made of.
func (c *imageCache) ensure(ctx context.Context, s *v1alpha1.WangellService, progress runtime.Progress) (imageInfo, error) {
	info, err := c.ensureImage(ctx, s.Spec.Image, s.Spec.ImagePullPolicy, progress)
	if err != nil {
		return info, fmt.Errorf("service %s: image %q: %w", runtime.KeyOf(s), s.Spec.Image, err)
	}
	return info, nil
}

func (c *imageCache) ensureImage(ctx context.Context, ref string, policy corev1.PullPolicy, progress runtime.Progress) (imageInfo, error) {
	name, err := normalized(ref)
	if err != nil {
		return imageInfo{}, err
	}
	if policy != corev1.PullAlways {
		c.mu.Lock()
		info, ok := c.known[name]
		c.mu.Unlock()
		if ok {
			return info, nil
		}
		info, err := c.look(ctx, name)
		if err == nil || !errdefs.IsNotFound(err) {
			return info, err
		}
		if policy == corev1.PullNever {
			return info, &imageError{"not on this machine and imagePullPolicy is Never: load it (wangell image load) or change the policy", err}
		}
	}
	if err := c.pullOnce(ctx, name, progress); err != nil {
		return imageInfo{}, err
	}
	return c.look(ctx, name)
}

// look asks containerd for an image, unpacks it if it is not, and remembers it.
func (c *imageCache) look(ctx context.Context, name string) (imageInfo, error) {
	got, err := c.r.client.ImageService().Get(ctx, name)
	if err != nil {
		return imageInfo{}, native(err)
	}
	img := client.NewImage(c.r.client, got)
	unpacked, err := img.IsUnpacked(ctx, snapshotter)
	if err == nil && !unpacked {
		err = img.Unpack(ctx, snapshotter)
	}
	if err != nil {
		return imageInfo{}, imageFailure(err, "unpack")
	}
	spec, err := img.Spec(ctx)
	if err != nil {
		return imageInfo{}, imageFailure(err, "read configuration")
	}
	info := imageInfo{
		name: name, digest: got.Target.Digest, chain: identity.ChainID(spec.RootFS.DiffIDs).String(), config: spec.Config,
		architecture: spec.Architecture,
	}
	c.mu.Lock()
	c.known[name] = info
	c.mu.Unlock()
	return info, nil
}

// forget makes the next ensure ask containerd again.
func (c *imageCache) forget(ref string) {
	if name, err := normalized(ref); err == nil {
		c.mu.Lock()
		delete(c.known, name)
		c.mu.Unlock()
	}
}

// pullOnce pulls an image; callers that want the same at the same time share one pull, which goes on when
// one of them gives up.
func (c *imageCache) pullOnce(ctx context.Context, name string, progress runtime.Progress) error {
	if progress != nil {
		l := &progressListener{progress}
		c.mu.Lock()
		c.listeners[name] = append(c.listeners[name], l)
		c.mu.Unlock()
		defer c.removeListener(name, l)
	}
	done := c.pulls.DoChan(name, func() (any, error) {
		return nil, c.pull(c.r.ctx, name, func(finished, total int64) {
			c.mu.Lock()
			listeners := append([]*progressListener(nil), c.listeners[name]...)
			c.mu.Unlock()
			for _, l := range listeners {
				l.tell(name, finished, total)
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

// imageFailure explains an error that came while an image was brought to the machine.
func imageFailure(err error, doing string) error {
	err = native(err)
	switch {
	case errors.Is(err, runtime.ErrUnavailable):
		return err
	case diskFull(err):
		return &imageError{doing + ": no space left on device where containerd keeps images: free some or use another folder", err}
	}
	return &imageError{doing + ": " + err.Error(), err}
}

// Image is an image that containerd has.
type Image struct {
	Name   string
	Digest string
	// Size is the sum of the layers and the configuration as they were pulled, in bytes.
	Size int64
}

// Images lists the images on this machine in the instance's containerd namespace.
func (r *Runtime) Images(ctx context.Context) ([]Image, error) {
	list, err := r.client.ListImages(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", native(err))
	}
	images := make([]Image, 0, len(list))
	for _, i := range list {
		size, err := i.Size(ctx)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("size of image %s: %w", i.Name(), native(err))
		}
		images = append(images, Image{Name: i.Name(), Digest: i.Target().Digest.String(), Size: size})
	}
	return images, nil
}

// LoadImages brings the images of a tarball (docker save or OCI layout) to this machine and returns their names. Pods
// started from now on use them.
func (r *Runtime) LoadImages(ctx context.Context, tarball io.Reader) ([]string, error) {
	names, err := image.Import(ctx, r.client, tarball)
	for _, n := range names {
		r.images.forget(n)
	}
	if err != nil {
		return names, imageFailure(err, "load")
	}
	return names, nil
}
