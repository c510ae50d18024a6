// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// podSpec holds the fields of WangellServiceSpec that need a new pod when they change. Its JSON is hashed, so neither
// the order nor the tags may change.
type podSpec struct {
	Image           string                      `json:"image"`
	TargetPort      int32                       `json:"targetPort"`
	Command         []string                    `json:"command,omitempty"`
	Args            []string                    `json:"args,omitempty"`
	WorkingDir      string                      `json:"workingDir,omitempty"`
	Env             []corev1.EnvVar             `json:"env,omitempty"`
	Resources       corev1.ResourceRequirements `json:"resources,omitzero"`
	Volumes         []Volume                    `json:"volumes,omitempty"`
	VolumeMounts    []corev1.VolumeMount        `json:"volumeMounts,omitempty"`
	SecurityContext *corev1.SecurityContext     `json:"securityContext,omitempty"`

	ServiceAccountName           string                  `json:"serviceAccountName,omitempty"`
	AutomountServiceAccountToken bool                    `json:"automountServiceAccountToken,omitempty"`
	EnableServiceLinks           bool                    `json:"enableServiceLinks,omitempty"`
	Template                     *corev1.PodTemplateSpec `json:"template,omitempty"`

	Init           bool          `json:"init,omitempty"`
	StopSignal     string        `json:"stopSignal,omitempty"`
	ReadinessProbe *corev1.Probe `json:"readinessProbe,omitempty"`
	StartupProbe   *corev1.Probe `json:"startupProbe,omitempty"`

	Containers     []Container `json:"containers,omitempty"`
	InitContainers []Container `json:"initContainers,omitempty"`

	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`
	Layer   *Layer                 `json:"layer,omitempty"`
	Config  string                 `json:"config,omitempty"` // the hash of spec.Config
}

// Hash returns a hash of the fields that make a pod: image, targetPort, command, args, workingDir, env, envFrom, the
// data of the Secrets and ConfigMaps in Config, layer, resources, volumes (but for persistent.retain), volumeMounts,
// securityContext, init, stopSignal, readinessProbe, startupProbe, serviceAccountName, automountServiceAccountToken,
// enableServiceLinks, template, containers and initContainers.
// Fields that only the gate or the controller uses (port, address, idleTimeout, ...) are left out.
//
// The hash is 16 hexadecimal digits, the first 8 bytes of a SHA-256. It is the same before and after Default, however a
// quantity or a signal is written, and in every version of Wangell. The spec must be valid.
func Hash(spec *WangellServiceSpec) string {
	s := spec.DeepCopy()
	setDefault(&s.TargetPort, s.Port)
	canonicalList(s.Resources.Limits)
	canonicalList(s.Resources.Requests)
	for c := range s.Others {
		canonicalList(c.Resources.Limits)
		canonicalList(c.Resources.Requests)
		c.ImagePullPolicy = "" // as in spec
		if c.SecurityContext != nil && reflect.ValueOf(*c.SecurityContext).IsZero() {
			c.SecurityContext = nil
		}
	}
	for _, v := range s.Volumes {
		if p := v.Persistent; p != nil {
			p.Retain = nil // decides what happens once there is no pod
			if p.Size != nil {
				*p.Size = canonical(*p.Size)
			}
		}
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil {
			*v.EmptyDir.SizeLimit = canonical(*v.EmptyDir.SizeLimit)
		}
	}
	if s.SecurityContext != nil && reflect.ValueOf(*s.SecurityContext).IsZero() {
		s.SecurityContext = nil
	}
	if l := s.Layer; l != nil && l.SizeLimit != nil {
		*l.SizeLimit = canonical(*l.SizeLimit)
	}
	if n, err := ParseSignal(s.StopSignal); err == nil {
		s.StopSignal = fmt.Sprint(n)
	}
	text, err := json.Marshal(podSpec{
		s.Image, s.TargetPort, s.Command, s.Args, s.WorkingDir, s.Env, s.Resources, s.Volumes,
		s.VolumeMounts, s.SecurityContext, s.ServiceAccountName,
		isTrue(s.AutomountServiceAccountToken), isTrue(s.EnableServiceLinks), s.Template,
		isTrue(s.Init), s.StopSignal, s.ReadinessProbe, s.StartupProbe, s.Containers, s.InitContainers,
		s.EnvFrom, s.Layer, s.Config.hash(),
	})
	if err != nil {
		panic("v1alpha1: Hash of an invalid spec: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

func canonicalList(l corev1.ResourceList) {
	for name, q := range l {
		l[name] = canonical(q)
	}
}

// canonical makes the text of equal quantities equal, because a Quantity keeps the way in which it was written.
func canonical(q resource.Quantity) resource.Quantity {
	// Thousandths matter only for CPUs, and those of a large number overflow.
	if q.Value() < 1<<32 {
		return *resource.NewMilliQuantity(q.MilliValue(), resource.DecimalSI)
	}
	return *resource.NewQuantity(q.Value(), resource.DecimalSI)
}
