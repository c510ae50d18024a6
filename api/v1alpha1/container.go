// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Container is a container of a pod beside its main one, which the spec itself describes. Its fields are those of a
// Kubernetes container.
type Container struct {
	// Name is a DNS label, unique in the pod, and not the name of the service, which is that of the main container.
	// Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// Image is the container image. Required.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Image string `json:"image"`
	// ImagePullPolicy is Always, IfNotPresent or Never. Default: IfNotPresent.
	// +optional
	// +kubebuilder:validation:Enum=IfNotPresent;Always;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// Command replaces the image's entrypoint.
	// +optional
	Command []string `json:"command,omitempty"`
	// Args replaces the image's command.
	// +optional
	Args []string `json:"args,omitempty"`
	// WorkingDir replaces the image's working directory.
	// +optional
	WorkingDir string `json:"workingDir,omitempty"`
	// Env is added to the image's environment.
	// +optional
	Env []corev1.EnvVar `json:"env,omitempty"`
	// EnvFrom adds all keys of ConfigMaps and Secrets to the environment; variables of env go before them.
	// +optional
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`
	// Resources sets requests and limits of this container.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`
	// VolumeMounts mounts volumes of the spec into the container's file system.
	// +optional
	VolumeMounts []corev1.VolumeMount `json:"volumeMounts,omitempty"`
	// SecurityContext is that of this container.
	// +optional
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`
	// RestartPolicy Always makes an init container a sidecar: it runs as long as the pod, and the next container starts
	// without waiting for its end. Init containers only.
	// +optional
	// +kubebuilder:validation:Enum=Always
	RestartPolicy *corev1.ContainerRestartPolicy `json:"restartPolicy,omitempty"`
}

// IsSidecar reports whether an init container runs as long as its pod.
func (c *Container) IsSidecar() bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// Kubernetes returns the container as one of a Kubernetes pod.
func (c *Container) Kubernetes() corev1.Container {
	return corev1.Container{
		Name: c.Name, Image: c.Image, ImagePullPolicy: c.ImagePullPolicy, Command: c.Command, Args: c.Args,
		WorkingDir: c.WorkingDir, Env: c.Env, EnvFrom: c.EnvFrom, Resources: c.Resources, VolumeMounts: c.VolumeMounts,
		SecurityContext: c.SecurityContext, RestartPolicy: c.RestartPolicy,
	}
}

// Alone returns a service whose main container is c, with the volumes of s. Only what describes a container differs
// from s.
func (s *WangellService) Alone(c *Container) *WangellService {
	out := *s
	spec := &out.Spec
	spec.Image, spec.ImagePullPolicy, spec.Command, spec.Args = c.Image, c.ImagePullPolicy, c.Command, c.Args
	spec.WorkingDir, spec.Env, spec.EnvFrom, spec.Resources = c.WorkingDir, c.Env, c.EnvFrom, c.Resources
	spec.VolumeMounts, spec.SecurityContext = c.VolumeMounts, c.SecurityContext
	spec.Init, spec.StopSignal, spec.ReadinessProbe, spec.StartupProbe, spec.ImagePull = nil, "", nil, nil, nil
	spec.Containers, spec.InitContainers = nil, nil
	return &out
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

// MaxContainers is the largest number of containers of a pod beside its main one.
const MaxContainers = 16

// containers checks the containers beside the main one: on Kubernetes, only what the API server would not explain well.
func (e *ValidationErrors) containers(name string, s *WangellServiceSpec, cluster bool) {
	seen := map[string]string{name: "the main container, which has the name of the service"}
	if n := len(s.Containers) + len(s.InitContainers); n > MaxContainers {
		e.add(specPath.Child("containers"), "make it several services",
			"a pod has %d containers beside its main one, at most %d are possible", n, MaxContainers)
	}
	for _, list := range []struct {
		at   string
		init bool
		of   []Container
	}{{"initContainers", true, s.InitContainers}, {"containers", false, s.Containers}} {
		for i := range list.of {
			c, p := &list.of[i], specPath.Child(list.at).Index(i)
			if c.Name == "" {
				e.add(p.Child("name"), "write name: log, for example", "missing")
			} else if first, twice := seen[c.Name]; twice {
				e.add(p.Child("name"), "write another name", "%q is already the name of %s", c.Name, first)
			} else {
				seen[c.Name] = p.String()
				e.label(p.Child("name"), c.Name)
			}
			if c.RestartPolicy != nil && (!list.init || !c.IsSidecar()) {
				e.add(p.Child("restartPolicy"), "remove it", "is for init containers, which it makes sidecars: Always, got %q",
					*c.RestartPolicy)
			}
			e.imageAt(p.Child("image"), c.Image)
			e.oneOf(p.Child("imagePullPolicy"), string(c.ImagePullPolicy),
				string(corev1.PullIfNotPresent), string(corev1.PullAlways), string(corev1.PullNever))
			if !cluster {
				e.process(p, c.Command, c.Args, c.WorkingDir, c.Env)
				e.envFrom(p.Child("envFrom"), c.EnvFrom)
				e.resources(p.Child("resources"), &c.Resources)
				e.volumeMounts(p.Child("volumeMounts"), c.VolumeMounts, s.Volumes)
				e.securityContext(p.Child("securityContext"), c.SecurityContext)
			}
		}
	}
}

// process checks what is started in a container.
func (e *ValidationErrors) process(p *field.Path, command, args []string, dir string, env []corev1.EnvVar) {
	if len(command) > 0 && command[0] == "" {
		e.add(p.Child("command").Index(0), `write the program, for example command: ["/bin/server"]`, "is empty")
	}
	e.noNUL(p.Child("command"), command)
	e.noNUL(p.Child("args"), args)
	if dir != "" {
		e.absolute(p.Child("workingDir"), dir)
	}
	e.env(p.Child("env"), env)
}

// mainPath returns the path of the same field of the main container, whose ranges all containers have:
// spec.containers[2].resources becomes spec.resources.
func mainPath(path string) string {
	for _, list := range []string{"spec.containers[", "spec.initContainers["} {
		if rest, ok := strings.CutPrefix(path, list); ok {
			if _, name, ok := strings.Cut(rest, "]."); ok {
				return "spec." + name
			}
		}
	}
	return path
}
