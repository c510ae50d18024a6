// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteserrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// progressEvery is how often a pull tells how far it is.
const progressEvery = 250 * time.Millisecond

// pull brings an image from its registry and unpacks it.
func (c *imageCache) pull(ctx context.Context, ref string, tell func(done, total int64)) error {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return &imageError{err.Error(), err}
	}
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithPlainHTTP(c.r.plainHTTP),
		docker.WithAuthorizer(docker.NewDockerAuthorizer(docker.WithAuthCreds(credentials))),
	)})
	layers := &layerSet{seen: map[string]ocispec.Descriptor{}}
	ctx, cancel := context.WithCancel(ctx)
	var teller sync.WaitGroup
	teller.Go(func() { c.tellProgress(ctx, layers, tell) })
	_, err = c.r.client.Pull(ctx, ref,
		client.WithResolver(resolver),
		client.WithPullUnpack,
		client.WithPullSnapshotter(snapshotter),
		client.WithImageHandler(images.HandlerFunc(layers.add)),
	)
	cancel()
	teller.Wait()
	if err != nil {
		return pullFailure(err, reference.Domain(named))
	}
	total := layers.total()
	tell(total, total)
	return nil
}

// pullFailure says in words what a user can do about it.
func pullFailure(err error, registry string) error {
	var status remoteserrors.ErrUnexpectedStatus
	var network *net.OpError
	var dns *net.DNSError
	text := ""
	switch {
	case diskFull(err):
		return imageFailure(err, "pull")
	case errors.As(err, &status) && (status.StatusCode == http.StatusUnauthorized || status.StatusCode == http.StatusForbidden),
		errors.Is(err, docker.ErrInvalidAuthorization):
		text = fmt.Sprintf("registry %s refuses it (pull 401): check spec.image, or log in (docker login %s)", registry, registry)
	case errdefs.IsNotFound(err):
		text = "not found in registry (pull 404): check spec.image"
	case errors.As(err, &status):
		text = fmt.Sprintf("registry %s answers %s: try again later", registry, status.Status)
	case errors.As(err, &dns):
		text = fmt.Sprintf("registry %s has no address (%v): check spec.image and the machine's DNS", registry, dns)
	// gRPC's connection to containerd ends with ErrUnavailable, without a network operation.
	case errors.As(err, &network):
		text = fmt.Sprintf("registry %s does not answer (%v): check spec.image and the network", registry, network)
	default:
		return imageFailure(err, "pull")
	}
	return &imageError{text, err}
}

// credentials are those of docker login, for the registry host: ~/.docker/config.json and its helpers.
func credentials(host string) (user, secret string, err error) {
	if host == "registry-1.docker.io" {
		host = name.DefaultRegistry
	}
	registry, err := name.NewRegistry(host, name.Insecure)
	if err != nil {
		return "", "", err
	}
	auth, err := authn.DefaultKeychain.Resolve(registry)
	if err != nil {
		return "", "", fmt.Errorf("credentials for %s: %w", host, err)
	}
	a, err := auth.Authorization()
	if err != nil {
		return "", "", fmt.Errorf("credentials for %s: %w", host, err)
	}
	if a.IdentityToken != "" {
		return "", a.IdentityToken, nil
	}
	return a.Username, a.Password, nil
}

// plainHTTP tells whether a registry is spoken to without TLS.
func (r *Runtime) plainHTTP(host string) (bool, error) {
	if local, err := docker.MatchLocalhost(host); local || err != nil {
		return local, err
	}
	bare := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		bare = h
	}
	addr, addrErr := netip.ParseAddr(bare)
	for _, insecure := range r.cfg.InsecureRegistries {
		if insecure == host || insecure == bare {
			return true, nil
		}
		if prefix, err := netip.ParsePrefix(insecure); err == nil && addrErr == nil && prefix.Contains(addr) {
			return true, nil
		}
	}
	return false, nil
}

// layerSet collects what a pull consists of.
type layerSet struct {
	mu   sync.Mutex
	seen map[string]ocispec.Descriptor // by the key under which containerd reports its download
}

func (l *layerSet) add(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[remotes.MakeRefKey(ctx, d)] = d
	return nil, nil
}

func (l *layerSet) total() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, d := range l.seen {
		n += d.Size
	}
	return n
}

// tellProgress tells a few times a second how much of the layers is there, until ctx ends.
func (c *imageCache) tellProgress(ctx context.Context, layers *layerSet, tell func(done, total int64)) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	store := c.r.client.ContentStore()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		active, err := store.ListStatuses(ctx, "")
		if err != nil {
			continue // containerd is away: the pull itself will tell
		}
		offsets := map[string]int64{}
		for _, s := range active {
			offsets[s.Ref] = s.Offset
		}
		layers.mu.Lock()
		parts := make(map[string]ocispec.Descriptor, len(layers.seen))
		for k, d := range layers.seen {
			parts[k] = d
		}
		layers.mu.Unlock()
		var done, total int64
		for key, d := range parts {
			total += d.Size
			if offset, ok := offsets[key]; ok {
				done += offset
			} else if _, err := store.Info(ctx, d.Digest); err == nil {
				done += d.Size
			}
		}
		tell(done, total)
	}
}
