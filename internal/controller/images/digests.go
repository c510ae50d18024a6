// SPDX-License-Identifier: Apache-2.0

package images

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/imageref"
	"wangell.loutres.me/internal/node/cri"
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

// learn records the digests of images on which two nodes agree: the others then get the same content, even if the tag
// has moved. It reports whether there is a new digest, and the images of which each node has another content.
func (r *Digests) learn(spec *v1alpha1.WangellServiceSpec, v votes) (learned bool, disputed []string) {
	list := r.List
	for _, image := range spec.Images() {
		if r.names[image.Ref] != "" || !resolves(spec, image) {
			continue
		}
		switch digest, split := v.of(image.Ref); {
		case split:
			disputed = append(disputed, image.Ref)
		case digest != "":
			list = append(slices.Clip(list), v1alpha1.ImageDigest{Image: image.Ref, Digest: digest})
		}
	}
	if len(list) > len(r.List) {
		r.Set(spec, list)
		learned = true
	}
	return learned, disputed
}

// votes are what the nodes of a service say of its images.
type votes struct {
	nodes  []string
	report stateOf     // what their daemons have reported
	state  stateOf     // the same, with pulls by kubelet
	alone  func() bool // there is no other node where the pods could run
}

// of returns what a tag stands for: the digest that two nodes report, so that no single node chooses what others run.
// One is enough if the pods could run nowhere else, or if all others report that the registry is out of their reach.
// disputed is set if all nodes have the image and no two have the same content.
func (v votes) of(ref string) (digest string, disputed bool) {
	var seen []string
	unreachable := 0
	for _, node := range v.nodes {
		if has := v.report(node, ref); has.State == wire.ImagePresent && has.Digest != "" {
			if slices.Contains(seen, has.Digest) {
				return has.Digest, false
			}
			seen = append(seen, has.Digest)
			continue
		}
		if is := v.state(node, ref); is.State == wire.ImageFailed && is.Reason == cri.ReasonUnreachable {
			unreachable++
		}
	}
	switch others := len(v.nodes) - 1; {
	case len(seen) == 1 && (others > 0 && unreachable == others || others == 0 && v.alone()):
		return seen[0], false
	default:
		return "", len(seen) > 1 && len(seen) == len(v.nodes)
	}
}

// dispute is a tag of which each node has another content, as it has moved between their pulls: they pull it again.
type dispute struct {
	rounds uint64
	due    time.Time // when the next round may begin
}

const (
	// maxDisputes is how often nodes pull an image again because of a dispute. A node that lies prolongs it.
	maxDisputes = 4
	// disputePause is the pause after the first round, which doubles.
	disputePause = 20 * time.Second
)

// next begins another round, and returns the pause after it; 0 if none is due.
func (d *dispute) next(now time.Time) (pause time.Duration) {
	if d.rounds >= maxDisputes || now.Before(d.due) {
		return 0
	}
	pause = disputePause << d.rounds
	d.rounds, d.due = d.rounds+1, now.Add(pause)
	return pause
}
