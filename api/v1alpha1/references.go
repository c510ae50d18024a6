// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// References yields the references of all containers and volumes of a spec.
func (s *WangellServiceSpec) References(yield func(Reference) bool) {
	list := envReferences(specPath, s.EnvFrom, s.Env)
	for i := range s.InitContainers {
		c := &s.InitContainers[i]
		list = append(list, envReferences(specPath.Child("initContainers").Index(i), c.EnvFrom, c.Env)...)
	}
	for i := range s.Containers {
		c := &s.Containers[i]
		list = append(list, envReferences(specPath.Child("containers").Index(i), c.EnvFrom, c.Env)...)
	}
	for i := range s.Volumes {
		if c := s.Volumes[i].config(); c != nil {
			list = append(list, c.references(specPath.Child("volumes").Index(i))...)
		}
	}
	for _, r := range list {
		if !yield(r) {
			return
		}
	}
}

func envReferences(p *field.Path, from []corev1.EnvFromSource, env []corev1.EnvVar) (list []Reference) {
	add := func(p *field.Path, kind, name, key string, optional *bool) {
		r := Reference{Field: p.Child("name"), Kind: kind, Name: name, Key: key, Optional: isTrue(optional), Env: true}
		if key != "" {
			r.KeyField = p.Child("key")
		}
		list = append(list, r)
	}
	for i, f := range from {
		p := p.Child("envFrom").Index(i)
		if r := f.SecretRef; r != nil {
			add(p.Child("secretRef"), KindSecret, r.Name, "", r.Optional)
		}
		if r := f.ConfigMapRef; r != nil {
			add(p.Child("configMapRef"), KindConfigMap, r.Name, "", r.Optional)
		}
	}
	for i, v := range env {
		if v.ValueFrom == nil {
			continue
		}
		p := p.Child("env").Index(i).Child("valueFrom")
		if r := v.ValueFrom.SecretKeyRef; r != nil {
			add(p.Child("secretKeyRef"), KindSecret, r.Name, r.Key, r.Optional)
		}
		if r := v.ValueFrom.ConfigMapKeyRef; r != nil {
			add(p.Child("configMapKeyRef"), KindConfigMap, r.Name, r.Key, r.Optional)
		}
	}
	return list
}
