// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/lifecycle"
	"wangell.loutres.me/internal/images/imageref"
)

// digestsOf returns the digests of a service's images, and whether the Deployment has no pods that a change of its
// template would replace. Before the controller has the service, the digests come from its status.
func (r *reconciler) digestsOf(
	key v1alpha1.Key, s *v1alpha1.WangellService,
) (list []v1alpha1.ImageDigest, asleep bool) {
	st, known := r.StatusOf(key)
	if !known {
		return s.Status.ImageDigests, false
	}
	now := &st.Service.Status
	return now.ImageDigests, now.State == lifecycle.Cold.String() && now.Replicas == 0 && st.Desired == 0
}

// fixImages pins the images of a Deployment to their resolved digests. The annotation madeFrom does not change: it
// shows whether anything else has.
func fixImages(d *appsv1.Deployment, list []v1alpha1.ImageDigest) {
	digests := make(map[string]string, len(list))
	for _, i := range list {
		digests[i.Image] = i.Digest
	}
	for c := range v1alpha1.Containers(&d.Spec.Template.Spec) {
		if c.ImagePullPolicy == corev1.PullIfNotPresent {
			c.Image = imageref.Fixed(c.Image, digests[c.Image])
		}
	}
}

// keepImages keeps the images that a Deployment names unless it has no pods: pods must not be replaced only because the
// digest of their image has become known. If anything else has changed, they are replaced in any case. plain is want
// with the names of the spec.
func keepImages(is, want, plain *appsv1.Deployment, asleep bool) {
	atRest := asleep && is.Spec.Paused && is.Spec.Replicas != nil && *is.Spec.Replicas == 0
	if atRest || is.Annotations[madeFrom] != want.Annotations[madeFrom] {
		return
	}
	now, named := map[string]string{}, map[string]string{}
	for c := range v1alpha1.Containers(&is.Spec.Template.Spec) {
		now[c.Name] = c.Image
	}
	for c := range v1alpha1.Containers(&plain.Spec.Template.Spec) {
		named[c.Name] = c.Image
	}
	for c := range v1alpha1.Containers(&want.Spec.Template.Spec) {
		ref, image := named[c.Name], now[c.Name]
		if image == ref || strings.HasPrefix(image, imageref.Repository(ref)+"@") { // else it was changed by others
			c.Image = image
		}
	}
}
