// SPDX-License-Identifier: Apache-2.0

package images

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/decide/placement"
	"wangell.loutres.me/internal/node/cri"
	"wangell.loutres.me/internal/status"
)

// decideLazy decides whether the pods of a service start before their image is complete: if the service allows it,
// and a node can run such pods. enabled is Config.Lazy.
func decideLazy(spec *v1alpha1.WangellServiceSpec, nodes []placement.Node, enabled bool) status.LazyPulls {
	if !spec.PullsLazily() || !enabled {
		return status.LazyOff
	}
	pod := lazyPod(spec)
	if slices.ContainsFunc(nodes, func(n placement.Node) bool { return n.Known && placement.Fits(pod, &n) }) {
		return status.LazyOn
	}
	return status.LazyOff
}

// lazyPod returns the scheduling constraints of a service's pods with the RuntimeClass, whose node selector the API
// server adds to theirs.
func lazyPod(spec *v1alpha1.WangellServiceSpec) *corev1.PodSpec {
	pod := &corev1.PodSpec{}
	if spec.Template != nil {
		own := spec.Template.Spec
		pod = &own
	}
	selector := map[string]string{v1alpha1.LabelLazy: "true"}
	maps.Copy(selector, pod.NodeSelector)
	pod.NodeSelector = selector
	return pod
}

// orFull adds to an image status why images are pulled in full that should be pulled lazily.
func orFull(st status.Images, lazy status.LazyPulls, enabled bool) status.Images {
	if lazy != status.LazyOff {
		return st
	}
	why := fmt.Sprintf("no node where the pods could run has the label %s=true", v1alpha1.LabelLazy)
	if !enabled {
		why = "the chart's lazy.enabled is false"
	}
	st.Message += "; in full instead of lazily, because " + why + ": see docs/images/lazy-kubernetes.md"
	if st.Ready == status.ImagesReady {
		st.Reason = cri.ReasonNotLazy
	}
	return st
}
