// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"wangell.loutres.me/api/v1alpha1"
)

// setLayer applies spec.layer to a pod: a read-only root file system with folders in memory for each container, or a
// limit of what the pod may write.
func setLayer(pod *corev1.PodSpec, spec *v1alpha1.WangellServiceSpec) {
	if limit := spec.LayerLimit(); limit > 0 {
		// kubelet compares the sum of the containers' limits with what all of them have written.
		limits := maps.Clone(pod.Containers[0].Resources.Limits)
		if limits == nil {
			limits = corev1.ResourceList{}
		}
		if _, set := limits[corev1.ResourceEphemeralStorage]; !set {
			limits[corev1.ResourceEphemeralStorage] = *spec.Layer.SizeLimit
		}
		pod.Containers[0].Resources.Limits = limits
	}
	if !spec.ReadOnlyLayer() {
		return
	}
	n := 0
	for c := range v1alpha1.Containers(pod) {
		security := &corev1.SecurityContext{}
		if c.SecurityContext != nil {
			security = c.SecurityContext.DeepCopy()
		}
		yes := true
		setPointer(&security.ReadOnlyRootFilesystem, &yes)
		c.SecurityContext = security
		c.VolumeMounts = slices.Clone(c.VolumeMounts)
		for _, f := range v1alpha1.ScratchFolders {
			own := func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == f.Path }
			if slices.ContainsFunc(c.VolumeMounts, own) {
				continue
			}
			size := spec.ScratchSize()
			name := fmt.Sprintf("wangell-scratch-%d", n)
			n++
			pod.Volumes = append(pod.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size},
			}})
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: f.Path})
		}
	}
}
