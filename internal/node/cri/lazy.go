// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	contentv1 "github.com/containerd/containerd/api/services/content/v1"
	snapshotsv1 "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/stargz-snapshotter/estargz"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
)

// Reasons for lazily pulled images.
const (
	// ReasonLazyNotReady is the reason of an ImageError: the node is not set up for lazy pulls.
	ReasonLazyNotReady = "LazyNotReady"
	// ReasonUnreadable is the reason of an image of which some files cannot be fetched: pods that read them would get
	// EIO.
	ReasonUnreadable = "Unreadable"
	// ReasonNotLazy is the reason of an image without a layer in a lazy format, which was pulled in full.
	ReasonNotLazy = "NotLazy"
)

const lazyAdvice = "set it up as docs/images/lazy-kubernetes.md says, or remove the node's label " +
	v1alpha1.LabelLazy

// LazyReady returns an ImageError that says why this node cannot pull lazily; nil if it can.
func (s *Images) LazyReady(ctx context.Context) error {
	ctx, cancel := namespaced(ctx)
	defer cancel()
	st, err := criv1.NewRuntimeServiceClient(s.conn).Status(ctx, &criv1.StatusRequest{})
	if err != nil {
		return fmt.Errorf("ask the container runtime for its handlers: %w", err)
	}
	if !slices.ContainsFunc(st.GetRuntimeHandlers(), func(h *criv1.RuntimeHandler) bool {
		return h.GetName() == v1alpha1.LazyRuntime
	}) {
		return NewImageError(ReasonLazyNotReady, fmt.Sprintf("the container runtime has no handler %s: %s",
			v1alpha1.LazyRuntime, lazyAdvice), nil)
	}
	_, err = snapshotsv1.NewSnapshotsClient(s.conn).Stat(ctx, &snapshotsv1.StatSnapshotRequest{
		Snapshotter: v1alpha1.LazyRuntime, Key: "does wangell-snapshotter answer?",
	})
	if err == nil || status.Code(err) == codes.NotFound {
		return nil
	}
	return NewImageError(ReasonLazyNotReady, fmt.Sprintf("containerd cannot use its snapshotter %s (%s): %s",
		v1alpha1.LazyRuntime, status.Convert(err).Message(), lazyAdvice), err)
}

// PullLazily is Pull for pods that start before the image is complete: it returns once its layers are mounted, or
// unpacked if they are not in a lazy format.
func (s *Images) PullLazily(ctx context.Context, ref string) error {
	return s.pull(ctx, &criv1.PullImageRequest{
		Image: &criv1.ImageSpec{Image: ref, RuntimeHandler: v1alpha1.LazyRuntime},
		// containerd looks at the handler only if there is a sandbox, and before 2.4 only at the annotation.
		SandboxConfig: &criv1.PodSandboxConfig{
			Metadata:    &criv1.PodSandboxMetadata{},
			Annotations: map[string]string{v1alpha1.AnnotationHandler: v1alpha1.LazyRuntime},
		},
	})
}

// LazyFormat reports whether an image has a layer in a lazy format; known is false if the runtime does not have its
// manifest, or is not containerd.
func (s *Images) LazyFormat(ctx context.Context, ref string) (lazy, known bool) {
	layers, err := s.layersOf(ctx, ref)
	if err != nil || len(layers) == 0 {
		return false, false
	}
	return slices.ContainsFunc(layers, func(l ocispec.Descriptor) bool {
		return l.Annotations[estargz.TOCJSONDigestAnnotation] != ""
	}), true
}

// Whole reports whether the runtime has all layers of an image, so that it can unpack them for every snapshotter. It
// is true if the runtime is not containerd.
func (s *Images) Whole(ctx context.Context, ref string) (bool, error) {
	layers, err := s.layersOf(ctx, ref)
	if status.Code(err) == codes.Unimplemented {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	ctx, cancel := namespaced(ctx)
	defer cancel()
	for _, l := range layers {
		_, err := s.content.Info(ctx, &contentv1.InfoRequest{Digest: l.Digest.String()})
		switch {
		case status.Code(err) == codes.NotFound:
			return false, nil
		case err != nil:
			return false, fmt.Errorf("look for layer %s in containerd: %w", l.Digest, err)
		}
	}
	return true, nil
}

// HasLayer reports whether an image in containerd includes a layer.
func (s *Images) HasLayer(ctx context.Context, ref, layer string) bool {
	return s.hasLayer(ctx, s.Name(ref), layer)
}

func (s *Images) hasLayer(ctx context.Context, name, layer string) bool {
	layers, err := s.layersNamed(ctx, name)
	return err == nil && slices.ContainsFunc(layers, func(l ocispec.Descriptor) bool { return l.Digest.String() == layer })
}

// LazyPods returns the UIDs of services' pods with a container that was created before a time from a lazily pulled
// image that includes a layer.
func (s *Images) LazyPods(ctx context.Context, layer string, before monotime.Time) (uids []string, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := criv1.NewRuntimeServiceClient(s.conn)
	pods, err := client.ListPodSandbox(call, &criv1.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	list, err := client.ListContainers(call, &criv1.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	for _, p := range pods.Items {
		if p.RuntimeHandler == v1alpha1.LazyRuntime && p.Labels[v1alpha1.LabelService] != "" &&
			slices.ContainsFunc(list.Containers, func(c *criv1.Container) bool {
				return c.PodSandboxId == p.Id && monotimeOf(c.CreatedAt) < before &&
					s.hasLayer(ctx, cmp.Or(c.ImageId, c.ImageRef), layer)
			}) {
			uids = append(uids, p.GetMetadata().GetUid())
		}
	}
	return uids, nil
}

// layersOf returns the layers of an image in containerd, for this platform.
func (s *Images) layersOf(ctx context.Context, ref string) ([]ocispec.Descriptor, error) {
	return s.layersNamed(ctx, s.Name(ref))
}

// layersNamed is layersOf for containerd's own name of an image, which may be that of its configuration.
func (s *Images) layersNamed(ctx context.Context, name string) ([]ocispec.Descriptor, error) {
	ctx, cancel := namespaced(ctx)
	defer cancel()
	image, err := s.get(ctx, name)
	if err != nil {
		return nil, err
	}
	var top struct {
		Layers, Manifests []ocispec.Descriptor
	}
	if err := json.Unmarshal(s.read(ctx, image.Target.Digest), &top); err != nil || len(top.Layers) > 0 {
		return top.Layers, nil
	}
	for _, d := range top.Manifests { // containerd has pulled that of this platform only
		var m ocispec.Manifest
		if json.Unmarshal(s.read(ctx, d.Digest.String()), &m) == nil && len(m.Layers) > 0 {
			return m.Layers, nil
		}
	}
	return nil, nil
}
