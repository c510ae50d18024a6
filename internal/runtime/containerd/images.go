// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"fmt"
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
	"wangell.loutres.me/internal/runtime"
)

// imageInfo is what the start of a container needs from an unpacked image.
type imageInfo struct {
	name   string // the full reference, as in containerd
	digest digest.Digest
	chain  string // name of the snapshot of the topmost layer
	config ocispec.ImageConfig
	// architecture is named as in GOARCH.
	architecture string
}

// imageCache holds the images that services use. It notices that an image was removed or replaced in containerd by
// other means when a container is created from it.
type imageCache struct {
	ctx    context.Context // of pulls: they outlive the calls that wait for them
	client *client.Client
	puller puller
	pulls  singleflight.Group // by name

	mu        sync.Mutex
	known     map[string]imageInfo           // by name
	listeners map[string][]*progressListener // of pulls that run, by name
}

// progressListener makes a progress function comparable, by its address.
type progressListener struct{ report runtime.Progress }

// newImageCache returns an empty cache. Pulls end with ctx.
func newImageCache(ctx context.Context, c *client.Client, insecureRegistries []string) *imageCache {
	return &imageCache{
		ctx: ctx, client: c, puller: puller{c, insecureRegistries},
		known: map[string]imageInfo{}, listeners: map[string][]*progressListener{},
	}
}

// normalized completes a reference with its registry and tag: "nginx" becomes "docker.io/library/nginx:latest".
func normalized(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", &imageError{fmt.Sprintf("%v: write [REGISTRY/]NAME[:TAG]", err), err}
	}
	return named.String(), nil
}

// ensure makes sure that the image of s is on the machine, following the pull policy, and returns its details.
func (c *imageCache) ensure(ctx context.Context, s *v1alpha1.WangellService,
	progress runtime.Progress) (imageInfo, error) {
	info, err := c.ensureImage(ctx, s.Spec.Image, s.Spec.ImagePullPolicy, progress)
	if err != nil {
		return info, fmt.Errorf("service %s: image %q: %w", runtime.KeyOf(s), s.Spec.Image, err)
	}
	return info, nil
}

func (c *imageCache) ensureImage(ctx context.Context, ref string, policy corev1.PullPolicy,
	progress runtime.Progress) (imageInfo, error) {
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
			return info, &imageError{
				"not on this machine and imagePullPolicy is Never: load it (wangell image load) or change the policy", err,
			}
		}
	}
	if err := c.pullOnce(ctx, name, progress); err != nil {
		return imageInfo{}, err
	}
	return c.look(ctx, name)
}

// look reads an image from containerd, unpacks it if necessary, and caches it.
func (c *imageCache) look(ctx context.Context, name string) (imageInfo, error) {
	got, err := c.client.ImageService().Get(ctx, name)
	if err != nil {
		return imageInfo{}, native(err)
	}
	img := client.NewImage(c.client, got)
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

// pullOnce pulls an image. Concurrent calls for the same image share one pull, which goes on when one of them is
// cancelled.
func (c *imageCache) pullOnce(ctx context.Context, name string, progress runtime.Progress) error {
	if progress != nil {
		l := &progressListener{progress}
		c.mu.Lock()
		c.listeners[name] = append(c.listeners[name], l)
		c.mu.Unlock()
		defer c.removeListener(name, l)
	}
	done := c.pulls.DoChan(name, func() (any, error) {
		return nil, c.puller.pull(c.ctx, name, func(finished, total int64) {
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
