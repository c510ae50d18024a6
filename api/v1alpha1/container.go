// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// MainContainer returns the name of the container that listens on the target port: the one named like the service, or
// else the first one. The service must be valid.
func (s *WangellService) MainContainer() string {
	if s.Spec.Template == nil {
		return s.Name
	}
	return mainOf(s.Name, s.Spec.Template.Spec.Containers).Name
}

// mainOf returns the container with a name, or else the first one; nil if there is none.
func mainOf(name string, containers []corev1.Container) *corev1.Container {
	if i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
		return &containers[i]
	}
	if len(containers) == 0 {
		return nil
	}
	return &containers[0]
}

// Alone returns a service whose main container is c, with the volumes of s. Only what describes a container differs
// from s.
func (s *WangellService) Alone(c *Container) *WangellService {
	out := *s
	for _, f := range specFields {
		if f.uses&ofContainer != 0 {
			f.of(&out.Spec).SetZero()
		}
	}
	copySame(&out.Spec, c)
	out.Spec.ImagePull, out.Spec.Containers, out.Spec.InitContainers = nil, nil, nil
	return &out
}

// Main returns the main container that the spec describes, with a name. The spec must have no template.
func (s *WangellServiceSpec) Main(name string) Container {
	c := Container{Name: name}
	copySame(&c, s)
	return c
}

// KubernetesMain returns the main container as one of a Kubernetes pod, with the fields that Kubernetes has under the
// same name.
func (s *WangellServiceSpec) KubernetesMain(name string) corev1.Container {
	c := corev1.Container{Name: name}
	copySame(&c, s)
	return c
}

// Others yields the containers of a pod beside the main one, the init containers first.
func (s *WangellServiceSpec) Others(yield func(*Container) bool) {
	for _, list := range [][]Container{s.InitContainers, s.Containers} {
		for i := range list {
			if !yield(&list[i]) {
				return
			}
		}
	}
}

// Containers returns the containers of a pod to read or change, the init containers first.
func Containers(pod *corev1.PodSpec) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// IsInit reports whether the container with a name runs to its end before the pod serves: an init container that is no
// sidecar.
func (s *WangellServiceSpec) IsInit(name string) bool {
	return slices.ContainsFunc(s.InitContainers, func(c Container) bool { return c.Name == name && !c.IsSidecar() })
}

// ContainerNames returns the names of the containers of the service's pods, the main one first, then the init
// containers. The service must be valid.
func (s *WangellService) ContainerNames() []string {
	names := []string{s.MainContainer()}
	for c := range s.Spec.Others {
		names = append(names, c.Name)
	}
	if t := s.Spec.Template; t != nil {
		for c := range Containers(&t.Spec) {
			if c.Name != names[0] {
				names = append(names, c.Name)
			}
		}
	}
	return names
}

// NeedContainer returns an error unless the service has a container with a name; empty is the main one.
func (s *WangellService) NeedContainer(name string) error {
	if names := s.ContainerNames(); name != "" && !slices.Contains(names, name) {
		return fmt.Errorf("service %s/%s: it has no container %q: its containers are %s", s.Namespace, s.Name, name,
			strings.Join(names, ", "))
	}
	return nil
}

// mounts returns the volume mounts of all containers.
func (s *WangellServiceSpec) mounts() []corev1.VolumeMount {
	mounts := slices.Clone(s.VolumeMounts)
	for c := range s.Others {
		mounts = append(mounts, c.VolumeMounts...)
	}
	return mounts
}
