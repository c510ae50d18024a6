// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/images/pullstat"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/runtime/containerd"
)

// lockedBuffer is a buffer for several writers.
type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// pullClient pulls with containerd's client library and returns the library's log, which has the downloads.
func (s *scratch) pullClient(ctx context.Context, from source, unpackers int) ([]pullstat.Event, error) {
	var records lockedBuffer
	logger := logrus.New()
	logger.SetOutput(&records)
	logger.SetLevel(logrus.DebugLevel)
	logger.SetFormatter(&logrus.JSONFormatter{TimestampFormat: log.RFC3339NanoFixed})
	ctx = log.WithLogger(ctx, logrus.NewEntry(logger))
	options := []client.RemoteOpt{
		client.WithResolver(containerd.NewResolver(from.plain())),
		client.WithPullUnpack,
		client.WithPullSnapshotter(s.snapshotter),
	}
	if unpackers > 1 {
		limit := client.WithUnpackLimiter(semaphore.NewWeighted(int64(unpackers)))
		options = append(options, client.WithUnpackOpts([]client.UnpackOpt{limit}))
	}
	if _, err := s.client.Pull(ctx, from.ref, options...); err != nil {
		return nil, err
	}
	return logEvents(&records.Buffer)
}

// pullCRI has containerd's CRI plugin pull, which logs its downloads in containerd's own log.
func (s *scratch) pullCRI(ctx context.Context, from source, _ int) ([]pullstat.Event, error) {
	r := &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: from.ref}}
	user, secret, err := containerd.Credentials(from.host())
	if err != nil {
		return nil, err
	}
	switch {
	case user == "" && secret != "":
		r.Auth = &criv1.AuthConfig{IdentityToken: secret}
	case secret != "":
		r.Auth = &criv1.AuthConfig{Username: user, Password: secret}
	}
	conn, ok := s.client.Conn().(grpc.ClientConnInterface)
	if !ok {
		return nil, fmt.Errorf("containerd's client has no gRPC connection, but a %T", s.client.Conn())
	}
	_, err = criv1.NewImageServiceClient(conn).PullImage(ctx, r)
	return nil, err
}

// explain adds what a user can do about the error of a pull.
func explain(ref string, err error) error {
	text := ""
	switch cri.Explain(ref, err).Reason {
	case cri.ReasonNotFound:
		text = "not found in its registry (pull 404): check the name"
	case cri.ReasonUnauthorized:
		text = "its registry refuses it (pull 401): check the name, or log in with docker login"
	case cri.ReasonDiskFull:
		text = "no space left on device for the throw-away copy: choose another disk with --dir"
	case cri.ReasonUnreachable:
		text = "its registry cannot be reached: check the name and the network"
	default:
		return err
	}
	return fmt.Errorf("%s: %w", text, err)
}

// layers returns the layers of the image that was pulled, for this machine's platform.
func (s *scratch) layers(ctx context.Context, ref string) ([]pullstat.Layer, error) {
	image, err := s.client.ImageService().Get(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("read the image's record: %w", err)
	}
	store := s.client.ContentStore()
	manifest, err := images.Manifest(ctx, store, image.Target, platforms.Default())
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	text, err := content.ReadBlob(ctx, store, manifest.Config)
	if err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	var config ocispec.Image
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("read the image's configuration: %w", err)
	}
	if len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		return nil, fmt.Errorf("the manifest has %d layers, the configuration %d", len(manifest.Layers),
			len(config.RootFS.DiffIDs))
	}
	chain := identity.ChainIDs(slices.Clone(config.RootFS.DiffIDs))
	var layers []pullstat.Layer
	for i, l := range manifest.Layers {
		layers = append(layers, pullstat.Layer{
			Digest: l.Digest.String(), ChainID: chain[i].String(), Packed: l.Size,
		})
	}
	return layers, nil
}

// storedTimes returns when the blobs were stored, as the content store remembers: containerd 1.x has no event for it.
func (s *scratch) storedTimes(ctx context.Context, layers []pullstat.Layer) ([]pullstat.Event, error) {
	var all []pullstat.Event
	for _, l := range layers {
		info, err := s.client.ContentStore().Info(ctx, digest.Digest(l.Digest))
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.Digest, err)
		}
		all = append(all, pullstat.Event{Time: info.CreatedAt, Kind: pullstat.EventStored, ID: l.Digest})
	}
	return all, nil
}
