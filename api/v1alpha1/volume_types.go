// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Volume is a volume of a Kubernetes pod, or a persistent volume of one machine.
type Volume struct {
	corev1.Volume `json:",inline"`
	// Persistent is a folder that Wangell keeps for the service. It outlives pods, sleeps and restarts. One machine only.
	// +optional
	Persistent *PersistentVolume `json:"persistent,omitempty"`
}

// PersistentVolume is a volume in the state folder of one machine.
type PersistentVolume struct {
	// Size is the most that the volume holds. The space is reserved when the volume is made. Default: no limit but the
	// disk's, and nothing is reserved.
	// +optional
	Size *resource.Quantity `json:"size,omitempty"`
	// Retain keeps the volume when the service is removed. Default: true.
	// +optional
	Retain *bool `json:"retain,omitempty"`
	// Name is the name of the volume in its namespace, for services that have a volume in common. Default: the names of
	// service and volume, as in "shop.data".
	// +optional
	Name string `json:"name,omitempty"`
	// Shared lets other services write to the volume that have set it as well. Default: false.
	// +optional
	Shared bool `json:"shared,omitempty"`
}

// VolumeName returns the name of a persistent volume in the namespace of its service. Names of services and volumes
// have no dots, so that default names are unique.
func (v *Volume) VolumeName(service string) string {
	if v.Persistent.Name != "" {
		return v.Persistent.Name
	}
	return service + "." + v.Name
}

// Retained reports whether the volume is kept when its service is removed.
func (v *PersistentVolume) Retained() bool { return v.Retain == nil || *v.Retain }

// Bytes returns the size in bytes; 0 if there is no limit.
func (v *PersistentVolume) Bytes() int64 {
	if v.Size == nil {
		return 0
	}
	return v.Size.Value()
}
