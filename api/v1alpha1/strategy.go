// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// UpdateStrategy says whether pods of a service may run at the same time.
type UpdateStrategy string

// The update strategies.
const (
	UpdateRecreate UpdateStrategy = "Recreate"      // no pod starts before the one before it is gone
	UpdateRolling  UpdateStrategy = "RollingUpdate" // a new pod may start while old ones run
)

// Strategy returns updateStrategy. Where that is left out, it is UpdateRecreate if the service has one pod, and a
// second one could write to the same volume. With a maxReplicas above 1 its author has said that several pods may.
func (s *WangellServiceSpec) Strategy() UpdateStrategy {
	switch {
	case s.UpdateStrategy != "":
		return s.UpdateStrategy
	case mostPods(s) <= 1 && s.SharedVolume() != "":
		return UpdateRecreate
	}
	return UpdateRolling
}

// SharedVolume returns the name of the first volume that two pods of the service may write to; empty if there is none.
func (s *WangellServiceSpec) SharedVolume() string {
	volumes, mounts := s.Volumes, s.VolumeMounts
	var devices []corev1.VolumeDevice
	if s.Template != nil {
		pod := &s.Template.Spec
		volumes, mounts = pod.Volumes, nil
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			mounts, devices = append(mounts, c.VolumeMounts...), append(devices, c.VolumeDevices...)
		}
	}
	for i := range volumes {
		v := &volumes[i]
		writes := slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name && !m.ReadOnly }) ||
			slices.ContainsFunc(devices, func(d corev1.VolumeDevice) bool { return d.Name == v.Name })
		if writes && shared(&v.VolumeSource) {
			return v.Name
		}
	}
	return ""
}

// shared reports whether pods of a service have a volume in common and may write to it. Kinds that each pod has for
// itself, or that are read-only, are known by name, so that an unknown kind counts as shared.
func shared(v *corev1.VolumeSource) bool {
	switch {
	case v.EmptyDir != nil, v.Ephemeral != nil, v.CSI != nil, v.GitRepo != nil, v.ConfigMap != nil, v.Secret != nil,
		v.DownwardAPI != nil, v.Projected != nil, v.Image != nil:
		return false
	case v.PersistentVolumeClaim != nil:
		return !v.PersistentVolumeClaim.ReadOnly
	case v.HostPath != nil:
		t := v.HostPath.Type
		return t == nil || *t != corev1.HostPathSocket && *t != corev1.HostPathCharDev
	}
	return true
}
