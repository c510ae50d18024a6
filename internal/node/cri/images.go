// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	containerdv1 "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/internal/images/imageref"
)

// Image is an image that the container runtime has.
type Image struct {
	// Digest is the digest of the image's manifest or index, "sha256:…", by which the runtime finds it in its
	// repository; empty if the image did not come from there.
	Digest string
	// Size is what the runtime reports, in bytes.
	Size uint64
	// Volumes are the folders that the image's configuration declares as volumes, sorted; none if the runtime does not
	// tell its configuration.
	Volumes []string
}

// Images are the images of one container runtime. Its methods may be called from several goroutines at once.
type Images struct {
	conn       *grpc.ClientConn
	cri        criv1.ImageServiceClient
	containerd containerdv1.ImagesClient
	content    contentv1.ContentClient
}

// OpenImages returns the images of the runtime at an endpoint as in Config.
func OpenImages(endpoint string) (*Images, error) {
	conn, err := dial(endpoint)
	if err != nil {
		return nil, err
	}
	return &Images{
		conn, criv1.NewImageServiceClient(conn), containerdv1.NewImagesClient(conn), contentv1.NewContentClient(conn),
	}, nil
}

// Content returns containerd's content store, and a context with the namespace in which its CRI plugin has images. With
// another runtime all calls of the store fail.
func (s *Images) Content(ctx context.Context) (content.Store, context.Context) {
	return proxy.NewContentStore(s.conn), namespaces.WithNamespace(ctx, criNamespace)
}

// Digests returns the digests of all images that containerd has for its CRI plugin, by their full names, as in
// "docker.io/library/nginx:1.29". With another runtime it fails.
func (s *Images) Digests(ctx context.Context) (map[string]string, error) {
	ctx, cancel := namespaced(ctx)
	defer cancel()
	list, err := s.containerd.List(ctx, &containerdv1.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	out := make(map[string]string, len(list.Images))
	for _, i := range list.Images {
		out[i.Name] = i.GetTarget().GetDigest()
	}
	return out, nil
}

// Close closes the connection.
func (s *Images) Close() error { return s.conn.Close() }

// Look returns an image by the name that a user gave it, and whether the runtime has it.
func (s *Images) Look(ctx context.Context, ref string) (image Image, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := s.cri.ImageStatus(ctx, &criv1.ImageStatusRequest{Image: &criv1.ImageSpec{Image: ref}, Verbose: true})
	if err != nil {
		return Image{}, false, fmt.Errorf("look for it: %w", err)
	}
	if r.Image == nil {
		return Image{}, false, nil
	}
	return Image{digestOf(r.Image.RepoDigests, ref), r.Image.Size, volumesOf(r.Info["info"])}, true, nil
}

// volumesOf returns the volumes in the verbose information about an image, JSON that containerd and CRI-O give alike.
func volumesOf(info string) []string {
	var about struct {
		ImageSpec ocispec.Image `json:"imageSpec"`
	}
	if json.Unmarshal([]byte(info), &about) != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(about.ImageSpec.Config.Volumes))
}

// digestOf returns the digest of an image in its own repository; empty if it has none there, because the runtime
// could not find it by another one.
func digestOf(repoDigests []string, ref string) string {
	repository := imageref.Repository(ref)
	for _, d := range repoDigests {
		if name, digest, _ := strings.Cut(d, "@"); name == repository {
			return digest
		}
	}
	return ""
}

// Pull pulls an image, without a time limit, and returns once it is unpacked. An error that users can fix is an
// ImageError.
func (s *Images) Pull(ctx context.Context, ref string) error {
	return s.pull(ctx, &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: ref}})
}

func (s *Images) pull(ctx context.Context, r *criv1.PullImageRequest) error {
	_, err := s.cri.PullImage(ctx, r)
	if err != nil && ctx.Err() == nil {
		return Explain(r.Image.Image, err)
	}
	return err
}

// criNamespace is containerd's namespace for the CRI.
const criNamespace = "k8s.io"

// namespaced returns a context for calls of containerd's API in the namespace of the CRI.
func namespaced(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", criNamespace), cancel
}
