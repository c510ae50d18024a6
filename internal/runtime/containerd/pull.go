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
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"wangell.loutres.me/internal/base/backoff"
	"wangell.loutres.me/internal/base/silence"
	"wangell.loutres.me/internal/images/registryhosts"
	"wangell.loutres.me/internal/runtime"
)

// dropTimeout bounds the removal of the remains of a failed pull.
const dropTimeout = 10 * time.Second

// progressEvery is the interval of the progress reports of a pull.
const progressEvery = 250 * time.Millisecond

// puller pulls images from registries into containerd.
type puller struct {
	client *client.Client
	// insecure is Config.InsecureRegistries.
	insecure []string
}

// Pulled is an image that Pull has pulled.
type Pulled struct {
	Name   string        `json:"name"` // in full, as in containerd
	Digest digest.Digest `json:"digest"`
}

// Pull pulls an image into containerd and has a snapshotter unpack it, with the credentials of docker login; insecure
// is as in Config.InsecureRegistries. It calls report a few times a second, from one goroutine, with packed bytes:
// total is 0 until it is known. Errors say what to do.
func Pull(ctx context.Context, c *client.Client, snapshotter, ref string, insecure []string,
	report func(done, total int64)) (Pulled, error) {
	full, err := FullName(ref)
	if err != nil {
		return Pulled{}, err
	}
	if err := (&puller{c, insecure}).pull(ctx, wish{name: full, snapshotter: snapshotter}, report); err != nil {
		return Pulled{}, err
	}
	got, err := c.ImageService().Get(ctx, full)
	if err != nil {
		return Pulled{}, native(err)
	}
	return Pulled{full, got.Target.Digest}, nil
}

// pull pulls an image and unpacks it, or mounts it. It calls report a few times a second, from one goroutine.
func (p *puller) pull(ctx context.Context, w wish, report func(done, total int64)) error {
	ref := w.name
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return &imageError{err.Error(), err}
	}
	layers := &layerSet{seen: map[string]ocispec.Descriptor{}}
	ctx, cancel := context.WithCancel(silence.In(ctx))
	var reporter sync.WaitGroup
	reporter.Go(func() { p.reportProgress(ctx, layers, report) })
	options := []client.RemoteOpt{
		client.WithResolver(NewResolver(p.insecure)),
		client.WithPullUnpack,
		client.WithImageHandler(images.HandlerFunc(layers.add)),
	}
	if w.lazy {
		options = append(options, client.WithPullSnapshotter(lazySnapshotter),
			client.WithImageHandlerWrapper(lazyHandler(ref)))
	} else {
		options = append(options, client.WithPullSnapshotter(w.snapshotter))
	}
	_, err = p.client.Pull(ctx, ref, options...)
	cancel()
	reporter.Wait()
	if err != nil {
		p.dropComplete(layers)
		return pullFailure(err, reference.Domain(named))
	}
	total := layers.total()
	report(total, total)
	return nil
}

// dropComplete drops complete downloads of a failed pull that containerd refused because of a wrong digest: it would
// use them again in the next pull. Partial downloads stay, and the next pull continues them.
func (p *puller) dropComplete(layers *layerSet) {
	ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
	defer cancel()
	store := p.client.ContentStore()
	layers.mu.Lock()
	defer layers.mu.Unlock()
	for key, d := range layers.seen {
		if s, err := store.Status(ctx, key); err == nil && s.Offset >= d.Size {
			_ = store.Abort(ctx, key) // or the next pull fails, and drops it
		}
	}
}

// NewResolver returns a resolver of references that uses the credentials of docker login, and plain HTTP for the
// registries in insecure, as in Config.InsecureRegistries. It waits as long as a registry asks (Retry-After).
func NewResolver(insecure []string) remotes.Resolver {
	return docker.NewResolver(docker.ResolverOptions{Hosts: docker.ConfigureDefaultRegistries(
		docker.WithPlainHTTP(func(host string) (bool, error) { return PlainHTTP(insecure, host) }),
		docker.WithClient(&http.Client{Transport: patient{http.DefaultTransport}}),
		docker.WithAuthorizer(registryhosts.Shared(docker.NewDockerAuthorizer(docker.WithAuthCreds(Credentials)))),
	)})
}

// pullFailure explains the error of a pull, with what a user can do about it.
func pullFailure(err error, registry string) error {
	var status remoteserrors.ErrUnexpectedStatus
	var network *net.OpError
	var dns *net.DNSError
	text := ""
	switch {
	case diskFull(err):
		return imageFailure(err, "pull")
	case errors.As(err, &status) && (status.StatusCode == http.StatusUnauthorized ||
		status.StatusCode == http.StatusForbidden),
		errors.Is(err, docker.ErrInvalidAuthorization):
		text = fmt.Sprintf("registry %s refuses it (pull 401): check spec.image, or log in (docker login %s)", registry,
			registry)
	case errdefs.IsNotFound(err):
		text = "not found in registry (pull 404): check spec.image"
	case errors.As(err, &status):
		text = fmt.Sprintf("registry %s answers %s: try again later", registry, status.Status)
	case errors.As(err, &dns):
		text = fmt.Sprintf("registry %s has no address (%v): check spec.image and the machine's DNS", registry, dns)
	// Not the connection to containerd: its failures are ErrUnavailable, without a net.OpError.
	case errors.As(err, &network):
		text = fmt.Sprintf("registry %s does not answer (%v): check spec.image and the network", registry, network)
	default:
		return imageFailure(err, "pull")
	}
	return &imageError{text, err}
}

// Credentials returns the credentials that docker login has stored for a registry host, in ~/.docker/config.json or its
// helpers.
func Credentials(host string) (user, secret string, err error) {
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

// PlainHTTP reports whether a registry is accessed without TLS; insecure is as in Config.InsecureRegistries.
func PlainHTTP(insecure []string, host string) (bool, error) {
	if local, err := docker.MatchLocalhost(host); local || err != nil {
		return local, err
	}
	bare := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		bare = h
	}
	addr, addrErr := netip.ParseAddr(bare)
	for _, known := range insecure {
		if known == host || known == bare {
			return true, nil
		}
		if prefix, err := netip.ParsePrefix(known); err == nil && addrErr == nil && prefix.Contains(addr) {
			return true, nil
		}
	}
	return false, nil
}

// layerSet collects the parts of the image that is being pulled.
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

// reportProgress reports the downloaded part of the layers a few times a second, until ctx ends.
func (p *puller) reportProgress(ctx context.Context, layers *layerSet, report func(done, total int64)) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	store := p.client.ContentStore()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		active, err := store.ListStatuses(ctx, "")
		if err != nil {
			continue // containerd is away: the pull itself returns the error
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
		report(done, total)
	}
}

// FullName completes a reference with its registry and tag: "nginx" becomes "docker.io/library/nginx:latest".
func FullName(ref string) (string, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return "", &imageError{fmt.Sprintf("%v: write [REGISTRY/]NAME[:TAG]", err), err}
	}
	return named.String(), nil
}

// wish is an image that a service wants.
type wish struct {
	name        string // in full
	snapshotter string // that unpacks it, if all of it is pulled
	lazy        bool   // while it is being pulled; otherwise it is used once it is complete
}

func (w wish) String() string { return fmt.Sprintf("%s %s lazy=%t", w.name, w.snapshotter, w.lazy) }

// imageError describes a problem with the image of a service. It wraps runtime.ErrImage without its text.
type imageError struct {
	text  string
	cause error
}

func (e *imageError) Error() string { return e.text }

func (e *imageError) Unwrap() []error { return []error{runtime.ErrImage, e.cause} }

// imageFailure explains an error of pulling, loading or unpacking an image.
func imageFailure(err error, doing string) error {
	err = native(err)
	switch {
	case errors.Is(err, runtime.ErrUnavailable):
		return err
	case diskFull(err):
		return &imageError{doing +
			": no space left on device where containerd keeps images: free some space or use another folder", err}
	}
	return &imageError{doing + ": " + err.Error(), err}
}

const (
	// patientTries bounds the repetitions of a request after responses with Retry-After, and longestRetryAfter the time
	// that is waited: a registry that asks for hours is reported instead.
	patientTries      = 5
	longestRetryAfter = time.Minute
)

// patient is a transport that repeats requests after the time that the registry asks for (429 or 503 with
// Retry-After). containerd's resolver repeats them at once, which also counts against a registry's limit of pulls.
type patient struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p patient) RoundTrip(req *http.Request) (*http.Response, error) {
	for try := 1; ; try++ {
		resp, err := p.next.RoundTrip(req)
		if err != nil || try == patientTries || req.Body != nil && req.Body != http.NoBody {
			return resp, err
		}
		wait, asked := backoff.RetryAfter(resp, time.Now())
		if !asked || wait > longestRetryAfter {
			return resp, nil
		}
		_ = resp.Body.Close()
		select {
		case <-time.After(wait):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
}
