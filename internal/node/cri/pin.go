// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"

	containerdv1 "github.com/containerd/containerd/api/services/images/v1"
	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"wangell.loutres.me/api/v1alpha1"
)

// The CRI has no call to keep an image from kubelet's garbage collection. containerd does so for images with a label,
// which is set through its own API, on the same socket.
const (
	labelPinned = "io.cri-containerd.pinned"
	valuePinned = "pinned"
	// labelOurs marks images that Wangell has pinned, so that pins of others are left alone.
	labelOurs = v1alpha1.Group + "/pinned"
	valueOurs = "true"
)

// Name returns the name under which containerd has an image: with registry and tag. One that is not a reference stays
// as it is.
func (*Images) Name(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ref
	}
	return named.String()
}

// Pin protects an image from kubelet's garbage collection. It reports false if the runtime is not containerd, which
// is the only one that can.
func (s *Images) Pin(ctx context.Context, ref string) (bool, error) {
	ctx, cancel := namespaced(ctx)
	defer cancel()
	image, err := s.get(ctx, s.Name(ref))
	switch {
	case status.Code(err) == codes.Unimplemented:
		return false, nil
	case err != nil:
		return true, err
	case image.Labels[labelPinned] == valuePinned:
		return true, nil
	}
	return true, s.label(ctx, image, valuePinned, valueOurs)
}

// Unpin undoes Pin for an image, by the name that Pinned returns. It does nothing if the image is gone.
func (s *Images) Unpin(ctx context.Context, name string) error {
	ctx, cancel := namespaced(ctx)
	defer cancel()
	image, err := s.get(ctx, name)
	if err == nil {
		err = s.label(ctx, image, "", "") // containerd removes empty labels
	}
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// get returns an image from containerd's API.
func (s *Images) get(ctx context.Context, name string) (*containerdv1.Image, error) {
	r, err := s.containerd.Get(ctx, &containerdv1.GetImageRequest{Name: name})
	switch {
	case err != nil:
		return nil, fmt.Errorf("image %q: look at its labels in containerd: %w", name, err)
	case r.GetImage().GetTarget() == nil:
		return nil, fmt.Errorf("image %q: containerd says nothing of its content", name)
	}
	return r.Image, nil
}

// label sets the labels of an image. The request has the image's target although it does not change: containerd 2.4
// crashes if it is missing.
func (s *Images) label(ctx context.Context, image *containerdv1.Image, pinned, ours string) error {
	_, err := s.containerd.Update(ctx, &containerdv1.UpdateImageRequest{
		Image: &containerdv1.Image{
			Name: image.Name, Target: image.Target, Labels: map[string]string{labelPinned: pinned, labelOurs: ours},
		},
		UpdateMask: &fieldmaskpb.FieldMask{
			Paths: []string{"labels." + labelPinned, "labels." + labelOurs},
		},
	})
	if err != nil {
		return fmt.Errorf("image %q: change its labels in containerd: %w", image.Name, err)
	}
	return nil
}

// Pinned returns the names of the images that Pin has pinned, also in an earlier process; none if the runtime is not
// containerd.
func (s *Images) Pinned(ctx context.Context) ([]string, error) {
	ctx, cancel := namespaced(ctx)
	defer cancel()
	r, err := s.containerd.List(ctx, &containerdv1.ListImagesRequest{
		Filters: []string{fmt.Sprintf("labels.%q==%q", labelOurs, valueOurs)},
	})
	if status.Code(err) == codes.Unimplemented {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned images: %w", err)
	}
	var names []string
	for _, image := range r.GetImages() {
		if image.GetLabels()[labelOurs] == valueOurs {
			names = append(names, image.GetName())
		}
	}
	return names, nil
}
