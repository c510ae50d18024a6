// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MinVolumeSize is the smallest size of a persistent volume: less leaves no room beside the file system's own records.
var MinVolumeSize = resource.MustParse("16Mi")

// PersistentVolumes returns the persistent volumes of a spec.
func (s *WangellServiceSpec) PersistentVolumes() (list []*Volume) {
	for i := range s.Volumes {
		if s.Volumes[i].Persistent != nil {
			list = append(list, &s.Volumes[i])
		}
	}
	return list
}

// EmptyDirLimits returns how many bytes the emptyDir volumes on disk may hold that have a limit, by their names.
func (s *WangellServiceSpec) EmptyDirLimits() map[string]int64 {
	limits := map[string]int64{}
	for i := range s.Volumes {
		e := s.Volumes[i].EmptyDir
		if e != nil && e.SizeLimit != nil && e.Medium != corev1.StorageMediumMemory {
			limits[s.Volumes[i].Name] = e.SizeLimit.Value()
		}
	}
	return limits
}

// Writes reports whether a container mounts a volume and may write to it.
func (s *WangellServiceSpec) Writes(volume string) bool {
	for _, m := range s.mounts() {
		if m.Name == volume && !m.ReadOnly {
			return true
		}
	}
	return false
}

// VolumesOf returns volumes of a Kubernetes pod as those of a spec.
func VolumesOf(list ...corev1.Volume) []Volume {
	volumes := make([]Volume, len(list))
	for i, v := range list {
		volumes[i].Volume = v
	}
	return volumes
}

// PodVolumes returns the volumes as a Kubernetes pod has them. Persistent ones are left out, as ValidateCluster refuses
// them.
func (s *WangellServiceSpec) PodVolumes() (list []corev1.Volume) {
	for i := range s.Volumes {
		if s.Volumes[i].Persistent == nil {
			list = append(list, s.Volumes[i].Volume)
		}
	}
	return list
}

// persistent checks a persistent volume.
func (e *ValidationErrors) persistent(p *field.Path, v *PersistentVolume) {
	if v.Size != nil && v.Size.Cmp(MinVolumeSize) < 0 {
		e.add(p.Child("size"), "write a size with its unit, for example size: 1Gi, or leave it out for no limit",
			"%s is less than %s, the smallest volume", v.Size.String(), MinVolumeSize.String())
	}
	if v.Name != "" && (len(validation.IsDNS1123Subdomain(v.Name)) > 0 || len(v.Name) > maxVolumeName) {
		e.add(p.Child("name"), "write a name such as "+toLabel(v.Name),
			"want at most %d of a-z, 0-9, - and ., a letter or digit first and last; got %q", maxVolumeName, v.Name)
	}
	if v.Shared && v.Name == "" {
		e.add(p.Child("shared"), "add name: the-shared-volume, the same in each of the services, or remove it",
			"needs name as well, by which services share a volume")
	}
}

// maxVolumeName is the longest name of a persistent volume: that of a service, a dot, and that of a volume.
const maxVolumeName = 63 + 1 + 63

// persistentOnCluster refuses persistent volumes on Kubernetes.
func (e *ValidationErrors) persistentOnCluster(volumes []Volume) {
	for i := range volumes {
		if volumes[i].Persistent == nil {
			continue
		}
		e.add(specPath.Child("volumes").Index(i).Child("persistent"),
			fmt.Sprintf("create a PersistentVolumeClaim and write {name: %s, persistentVolumeClaim: {claimName: NAME}}",
				volumes[i].Name),
			"is not available on Kubernetes, where a volume belongs to the cluster: only on one machine")
	}
}
