// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// configVolume is a volume whose files are the keys of a Secret or a ConfigMap.
//
// +kubebuilder:object:generate=false
type configVolume struct {
	kind, field string // of the volume: secret or configMap
	nameField   string
	name        string
	items       []corev1.KeyToPath
	mode        *int32
	optional    bool
}

// config returns the volume as one of files; nil if it is of another kind.
func (v *Volume) config() *configVolume {
	switch {
	case v.Secret != nil:
		return &configVolume{KindSecret, "secret", "secretName", v.Secret.SecretName, v.Secret.Items, v.Secret.DefaultMode,
			isTrue(v.Secret.Optional)}
	case v.ConfigMap != nil:
		return &configVolume{KindConfigMap, "configMap", "name", v.ConfigMap.Name, v.ConfigMap.Items,
			v.ConfigMap.DefaultMode, isTrue(v.ConfigMap.Optional)}
	}
	return nil
}

// HasFiles reports whether the volume has the files of a Secret or a ConfigMap.
func (v *Volume) HasFiles() bool { return v.config() != nil }

func (c *configVolume) references(p *field.Path) []Reference {
	p = p.Child(c.field)
	whole := Reference{Field: p.Child(c.nameField), Kind: c.kind, Name: c.name, Optional: c.optional}
	if len(c.items) == 0 {
		return []Reference{whole}
	}
	var list []Reference
	for i, item := range c.items {
		r := whole
		r.Key, r.KeyField = item.Key, p.Child("items").Index(i).Child("key")
		list = append(list, r)
	}
	return list
}

// File is a file of a volume.
//
// +kubebuilder:object:generate=false
type File struct {
	Path string // relative
	Mode uint32
	Data []byte
}

// defaultFileMode is the mode of files in volumes, as in Kubernetes.
const defaultFileMode = 0o644

// Files returns the files of a volume of a Secret or a ConfigMap, on one machine; none for other volumes.
func (s *WangellServiceSpec) Files(v *Volume) (list []File) {
	c := v.config()
	if c == nil {
		return nil
	}
	values, _ := s.Config.object(c.kind, c.name)
	mode := uint32(defaultFileMode)
	if c.mode != nil {
		mode = uint32(*c.mode)
	}
	if len(c.items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			list = append(list, File{key, mode, values[key]})
		}
	}
	for _, item := range c.items {
		data, ok := values[item.Key]
		if !ok {
			continue // optional
		}
		f := File{item.Path, mode, data}
		if item.Mode != nil {
			f.Mode = uint32(*item.Mode)
		}
		list = append(list, f)
	}
	return list
}
