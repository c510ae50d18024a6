// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// supported lists the fields of types that are only partly supported on one machine. Those of WangellServiceSpec are
// added from specTable.
var supported = map[reflect.Type][]string{
	reflect.TypeFor[corev1.EnvVar]():               {"name", "value", "valueFrom"},
	reflect.TypeFor[corev1.EnvVarSource]():         {"configMapKeyRef", "secretKeyRef"},
	reflect.TypeFor[corev1.ResourceRequirements](): {"limits", "requests"},
	reflect.TypeFor[corev1.SecurityContext](): {
		"runAsUser", "runAsGroup", "readOnlyRootFilesystem", "capabilities", "privileged", "allowPrivilegeEscalation",
	},
	reflect.TypeFor[Volume]():                       {"name", "persistent", "hostPath", "emptyDir", "secret", "configMap"},
	reflect.TypeFor[corev1.EmptyDirVolumeSource]():  {"medium", "sizeLimit"},
	reflect.TypeFor[corev1.SecretVolumeSource]():    {"secretName", "items", "defaultMode", "optional"},
	reflect.TypeFor[corev1.ConfigMapVolumeSource](): {"name", "items", "defaultMode", "optional"},
	reflect.TypeFor[corev1.VolumeMount]():           {"name", "mountPath", "readOnly", "subPath"},
	reflect.TypeFor[ImagePull]():                    {"policy", "when", "mode"},
	reflect.TypeFor[WangellServiceStatus]():         {"latestRequest", "loadBalancerIP", "replicas", "state", "message"},
	reflect.TypeFor[metav1.ObjectMeta]():            {"name", "namespace", "labels", "annotations"},
}

// Supported returns the JSON names of the fields of a type that are supported on one machine, or nil if all are.
func Supported(t reflect.Type) []string { return supported[t] }

// refuseSet refuses every field of the struct v that is set but not supported.
func (e *ValidationErrors) refuseSet(p *field.Path, v any) {
	rv := reflect.ValueOf(v)
	known := Supported(rv.Type())
	for i := range rv.NumField() {
		tag, _, _ := strings.Cut(rv.Type().Field(i).Tag.Get("json"), ",")
		if !rv.Field(i).IsZero() && !slices.Contains(known, tag) {
			e.add(p.Child(tag), "remove it; supported are "+strings.Join(known, ", "), "is not supported")
		}
	}
}

// setFields returns the JSON names of the fields of a struct that are set: "hostPath", "configMap", ...
func setFields[T any](s *T) []string {
	var names []string
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			tag, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			names = append(names, tag)
		}
	}
	return names
}
