// SPDX-License-Identifier: Apache-2.0

package images

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/wire"
)

// Digests maps the images of a service to digests. The zero value has none.
type Digests struct {
	List    []v1alpha1.ImageDigest // sorted by image; never changed in place
	names   map[string]string      // what nodes pull, by the image's name in the spec
	Changes int                    // how often List has changed
}

// resolves reports whether the name of an image is resolved once, so that all pods run the same content. With the
// policy Always each pod asks the registry, and with Never nodes have images that may come from no registry.
func resolves(spec *v1alpha1.WangellServiceSpec, image v1alpha1.ContainerImage) bool {
	return image.Policy == corev1.PullIfNotPresent && spec.PullsOnCreate()
}

// Set replaces the digests by those of list that the spec still needs.
func (r *Digests) Set(spec *v1alpha1.WangellServiceSpec, list []v1alpha1.ImageDigest) {
	var next []v1alpha1.ImageDigest
	names := map[string]string{}
	images := spec.Images()
	for _, d := range list {
		name := imageref.Fixed(d.Image, d.Digest)
		if _, known := names[d.Image]; known || len(name) > wire.MaxImageText || d.Digest == "" {
			continue
		}
		if slices.ContainsFunc(images, func(i v1alpha1.ContainerImage) bool {
			return i.Ref == d.Image && resolves(spec, i)
		}) {
			names[d.Image] = name
			next = append(next, d)
		}
	}
	slices.SortFunc(next, func(a, b v1alpha1.ImageDigest) int { return cmp.Compare(a.Image, b.Image) })
	if !slices.Equal(next, r.List) {
		r.List, r.names, r.Changes = next, names, r.Changes+1
	}
}

// Ran records the digest of a pod's image at the pod's start, on one machine.
func (r *Digests) Ran(image, digest string) {
	if next := []v1alpha1.ImageDigest{{Image: image, Digest: digest}}; !slices.Equal(next, r.List) {
		r.List, r.Changes = next, r.Changes+1
	}
}

// learn records the digests of images from the first node that has them: the others then get the same content, even
// if the tag has moved. It reports whether there is a new digest.
func (r *Digests) learn(spec *v1alpha1.WangellServiceSpec, nodes []string, report stateOf) bool {
	list := r.List
	for _, image := range spec.Images() {
		if r.names[image.Ref] != "" || !resolves(spec, image) {
			continue
		}
		for _, node := range nodes {
			has := report(node, image.Ref)
			if has.State == wire.ImagePresent && has.Digest != "" {
				list = append(slices.Clip(list), v1alpha1.ImageDigest{Image: image.Ref, Digest: has.Digest})
				break
			}
		}
	}
	if len(list) == len(r.List) {
		return false
	}
	r.Set(spec, list)
	return true
}
