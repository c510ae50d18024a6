// SPDX-License-Identifier: Apache-2.0

package critest

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	containerdv1 "github.com/containerd/containerd/api/services/images/v1"
	snapshotsv1 "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Digest is that of every image of the fake.
var Digest = "sha256:" + strings.Repeat("5", 64)

// Images are the images of a fake container runtime, which serves the CRI's ImageService and, like containerd, its own
// API on the same socket.
type Images struct {
	criv1.UnimplementedImageServiceServer
	containerd containerdImages

	mu sync.Mutex
	// onPull decides the outcome of a pull; without one it succeeds.
	onPull func(ctx context.Context, ref string) error
	labels map[string]map[string]string // of the images that exist, by full name
	layers []string                     // of every image
	pulls  []string
	most   int // pulls at the same time
	now    int
}

// containerdImages implements containerd's API for the same images.
type containerdImages struct {
	containerdv1.UnimplementedImagesServer
	images *Images
}

func newImages() *Images {
	s := &Images{labels: map[string]map[string]string{}}
	s.containerd.images = s
	return s
}

// register adds the services. Without containerd, the runtime has only the CRI.
func (s *Images) register(srv *grpc.Server, containerd bool) {
	criv1.RegisterImageServiceServer(srv, s)
	if containerd {
		containerdv1.RegisterImagesServer(srv, &s.containerd)
		contentv1.RegisterContentServer(srv, containerdContent{images: s})
		snapshotsv1.RegisterSnapshotsServer(srv, noSnapshots{})
	}
}

func fullName(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ref
	}
	return named.String()
}

// OnPull sets what a pull does: an error is its outcome.
func (s *Images) OnPull(f func(ctx context.Context, ref string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onPull = f
}

// Add makes an image exist.
func (s *Images) Add(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name := fullName(ref); s.labels[name] == nil {
		s.labels[name] = map[string]string{}
	}
}

// SetLayers sets the digests of the layers of every image, all of which are eStargz.
func (s *Images) SetLayers(digests ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.layers = digests
}

// containerdContent implements containerd's API for the manifest of the images, which has Digest.
type containerdContent struct {
	contentv1.UnimplementedContentServer
	images *Images
}

// Read implements containerd's API.
func (c containerdContent) Read(r *contentv1.ReadContentRequest,
	out contentv1.Content_ReadServer) error {
	if r.Digest != Digest {
		return status.Errorf(codes.NotFound, "content %s: not found", r.Digest)
	}
	var m ocispec.Manifest
	c.images.mu.Lock()
	for _, d := range c.images.layers {
		m.Layers = append(m.Layers, ocispec.Descriptor{
			Digest: digest.Digest(d), Annotations: map[string]string{estargz.TOCJSONDigestAnnotation: d},
		})
	}
	c.images.mu.Unlock()
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return out.Send(&contentv1.ReadContentResponse{Data: text})
}

// noSnapshots implements containerd's API for snapshotters that answer and have nothing.
type noSnapshots struct {
	snapshotsv1.UnimplementedSnapshotsServer
}

// Stat implements containerd's API.
func (noSnapshots) Stat(context.Context, *snapshotsv1.StatSnapshotRequest) (*snapshotsv1.StatSnapshotResponse, error) {
	return nil, status.Error(codes.NotFound, "no such snapshot")
}

// Remove removes an image, as an administrator does.
func (s *Images) Remove(ref string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.labels, fullName(ref))
}

// Pulls returns the names of all pulls that were asked for.
func (s *Images) Pulls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pulls)
}

// MostPulls returns how many pulls ran at the same time.
func (s *Images) MostPulls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// Labels returns containerd's labels of an image; nil if there is none.
func (s *Images) Labels(ref string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.labels[fullName(ref)])
}

// SetLabel sets a label of an image.
func (s *Images) SetLabel(ref, key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.labels[fullName(ref)][key] = value
}

// ImageStatus implements the CRI.
func (s *Images) ImageStatus(_ context.Context, r *criv1.ImageStatusRequest) (*criv1.ImageStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := fullName(r.GetImage().GetImage())
	if s.labels[name] == nil {
		return &criv1.ImageStatusResponse{}, nil
	}
	repository, _, _ := strings.Cut(name, ":")
	return &criv1.ImageStatusResponse{Image: &criv1.Image{
		Id: "sha256:1", Size: 1000, RepoDigests: []string{"other.example/x@sha256:0", repository + "@" + Digest},
	}}, nil
}

// PullImage implements the CRI.
func (s *Images) PullImage(ctx context.Context, r *criv1.PullImageRequest) (*criv1.PullImageResponse, error) {
	ref := r.GetImage().GetImage()
	s.mu.Lock()
	s.pulls = append(s.pulls, ref)
	s.now++
	s.most = max(s.most, s.now)
	f := s.onPull
	s.mu.Unlock()
	var err error
	if f != nil {
		err = f(ctx, ref)
	}
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	s.Add(ref)
	return &criv1.PullImageResponse{ImageRef: "sha256:1"}, nil
}

// inKubernetes checks the namespace of a call of containerd's API.
func inKubernetes(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if !slices.Equal(md.Get("containerd-namespace"), []string{"k8s.io"}) {
		return status.Error(codes.FailedPrecondition, "want the namespace k8s.io")
	}
	return nil
}

// Get implements containerd's API.
func (c *containerdImages) Get(ctx context.Context, r *containerdv1.GetImageRequest) (*containerdv1.GetImageResponse,
	error) {
	if err := inKubernetes(ctx); err != nil {
		return nil, err
	}
	labels := c.images.Labels(r.Name)
	if labels == nil {
		return nil, status.Errorf(codes.NotFound, "image %q: not found", r.Name)
	}
	return &containerdv1.GetImageResponse{Image: &containerdv1.Image{
		Name: r.Name, Labels: labels, Target: &types.Descriptor{Digest: Digest, Size: 1},
	}}, nil
}

// Update implements containerd's API for labels.
func (c *containerdImages) Update(ctx context.Context, r *containerdv1.UpdateImageRequest) (
	*containerdv1.UpdateImageResponse, error) {
	if err := inKubernetes(ctx); err != nil {
		return nil, err
	}
	if r.Image.Target.GetDigest() != Digest { // containerd 2.4 crashes without it
		return nil, status.Errorf(codes.Unavailable, "image %q: no target", r.Image.Name)
	}
	c.images.mu.Lock()
	defer c.images.mu.Unlock()
	labels := c.images.labels[r.Image.Name]
	if labels == nil {
		return nil, status.Errorf(codes.NotFound, "image %q: not found", r.Image.Name)
	}
	for _, path := range r.UpdateMask.GetPaths() {
		key := strings.TrimPrefix(path, "labels.")
		if v := r.Image.Labels[key]; v == "" {
			delete(labels, key)
		} else {
			labels[key] = v
		}
	}
	return &containerdv1.UpdateImageResponse{Image: r.Image}, nil
}

// List implements containerd's API for a filter of one label: labels."KEY"=="VALUE".
func (c *containerdImages) List(ctx context.Context, r *containerdv1.ListImagesRequest) (
	*containerdv1.ListImagesResponse, error) {
	if err := inKubernetes(ctx); err != nil {
		return nil, err
	}
	key, value, ok := strings.Cut(strings.TrimPrefix(r.Filters[0], "labels."), "==")
	if !ok || len(r.Filters) != 1 {
		return nil, status.Errorf(codes.InvalidArgument, "filters %q", r.Filters)
	}
	c.images.mu.Lock()
	defer c.images.mu.Unlock()
	out := &containerdv1.ListImagesResponse{}
	for name, labels := range c.images.labels {
		if labels[strings.Trim(key, `"`)] == strings.Trim(value, `"`) {
			out.Images = append(out.Images, &containerdv1.Image{Name: name, Labels: maps.Clone(labels)})
		}
	}
	return out, nil
}

// Delete implements containerd's API.
func (*containerdImages) Delete(context.Context, *containerdv1.DeleteImageRequest) (*emptypb.Empty, error) {
	return nil, status.Error(codes.PermissionDenied, "images are not to be deleted")
}
