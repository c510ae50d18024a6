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
)

// LazyPulls says whether the pods of a service on a cluster start before their image is complete.
type LazyPulls uint8

// The values of LazyPulls.
const (
	LazyUndecided LazyPulls = iota // the nodes are not known yet
	LazyOff                        // images are pulled in full
	LazyOn
)

// decideLazy decides whether the pods of a service start before their image is complete: if the service allows it,
// and a node can run such pods. enabled is Config.Lazy.
func decideLazy(spec *v1alpha1.WangellServiceSpec, nodes []placement.Node, enabled bool) LazyPulls {
	if !spec.PullsLazily() || !enabled {
		return LazyOff
	}
	pod := lazyPod(spec)
	if slices.ContainsFunc(nodes, func(n placement.Node) bool { return n.Known && placement.Fits(pod, &n) }) {
		return LazyOn
	}
	return LazyOff
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
func (st ImageStatus) orFull(lazy LazyPulls, enabled bool) ImageStatus {
	if lazy != LazyOff {
		return st
	}
	why := fmt.Sprintf("no node where the pods could run has the label %s=true", v1alpha1.LabelLazy)
	if !enabled {
		why = "the chart's lazy.enabled is false"
	}
	st.Message += "; in full instead of lazily, because " + why + ": see docs/images.md, Lazy pulling on Kubernetes"
	if st.Ready == imagesReady {
		st.Reason = cri.ReasonNotLazy
	}
	return st
}
