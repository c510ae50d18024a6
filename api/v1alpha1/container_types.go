// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

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
func (c *Container) IsSidecar() bool { return IsSidecar(c.RestartPolicy) }

// IsSidecar reports whether an init container with a restartPolicy runs as long as its pod.
func IsSidecar(p *corev1.ContainerRestartPolicy) bool {
	return p != nil && *p == corev1.ContainerRestartPolicyAlways
}

// Kubernetes returns the container as one of a Kubernetes pod.
func (c *Container) Kubernetes() (out corev1.Container) {
	copySame(&out, c)
	return out
}
