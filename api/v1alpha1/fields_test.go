// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// MakesPod reports whether the entry of a field says that another value needs a new pod.
func MakesPod(name string) bool {
	return slices.ContainsFunc(hashedFields, func(f specField) bool {
		return reflect.TypeFor[WangellServiceSpec]().Field(f.index).Name == name
	})
}

// A new field of the spec needs an entry in specTable, which says where it counts.
func TestEachFieldOfTheSpecHasOneEntry(t *testing.T) {
	entries := map[string]int{}
	for _, e := range specTable {
		entries[e.name]++
	}
	spec := reflect.TypeFor[WangellServiceSpec]()
	for i := range spec.NumField() {
		if name := spec.Field(i).Name; entries[name] != 1 {
			t.Errorf("%s has %d entries in specTable, want one", name, entries[name])
		}
	}
	if len(entries) != spec.NumField() {
		t.Errorf("%d entries for %d fields", len(entries), spec.NumField())
	}
}

// A field cannot describe the pod and be allowed beside a template, or beside traffic.
func TestFieldsOfPodsAreNotAllowedBesideTemplateOrTraffic(t *testing.T) {
	for _, f := range hashedFields {
		switch f.name {
		case "": // Config is no part of the document
		case "targetPort", "ports": // of the service, whatever describes its pods
		case "template":
			if f.uses&ofRevisions == 0 {
				t.Error("template is allowed beside traffic")
			}
		default:
			if f.uses&(inTemplate|ofRevisions) != inTemplate|ofRevisions {
				t.Errorf("%s makes a pod, but is allowed beside template or traffic", f.name)
			}
		}
	}
}

// The fields of the containers are copied by name: another type would leave one out.
func TestFieldsOfContainersAreCopied(t *testing.T) {
	spec, main := reflect.TypeFor[WangellServiceSpec](), reflect.TypeFor[Container]()
	kubernetes := reflect.TypeFor[corev1.Container]()
	uses := map[string]use{}
	for _, e := range specTable {
		uses[e.name] = e.uses
	}
	copied := 0
	for i := range main.NumField() {
		f := main.Field(i)
		if k, ok := kubernetes.FieldByName(f.Name); !ok || k.Type != f.Type {
			t.Errorf("Container.%s is not as in Kubernetes", f.Name)
		}
		if s, ok := spec.FieldByName(f.Name); ok {
			copied++
			if s.Type != f.Type || uses[f.Name]&ofContainer == 0 {
				t.Errorf("Container.%s is not that of the spec: another type, or it is not ofContainer", f.Name)
			}
		}
	}
	for i := range spec.NumField() {
		f := spec.Field(i)
		k, ok := kubernetes.FieldByName(f.Name)
		if ok && f.Name != "Ports" && (k.Type != f.Type || uses[f.Name]&ofContainer == 0) {
			t.Errorf("%s is not that of a Kubernetes container: another type, or it is not ofContainer", f.Name)
		}
	}
	if copied < 10 {
		t.Errorf("%d fields of Container are those of the spec, want at least 10", copied)
	}
}

func TestAloneDescribesOneContainer(t *testing.T) {
	yes := true
	s := &WangellService{Spec: WangellServiceSpec{
		Image: "a", Port: 80, Command: []string{"a"}, WorkingDir: "/a", Init: &yes, StopSignal: "INT",
		ReadinessProbe: &corev1.Probe{}, ImagePull: &ImagePull{}, Layer: &Layer{}, Volumes: []Volume{{}},
		Containers: []Container{{Name: "b", Image: "b", Args: []string{"b"}}},
	}}
	want := WangellServiceSpec{
		Image: "b", Port: 80, Args: []string{"b"}, Layer: s.Spec.Layer, Volumes: s.Spec.Volumes,
	}
	if got := s.Alone(&s.Spec.Containers[0]); !reflect.DeepEqual(got.Spec, want) {
		t.Errorf("got %+v, want %+v", got.Spec, want)
	}
	if s.Spec.Image != "a" || len(s.Spec.Containers) != 1 {
		t.Error("the service itself has changed")
	}
}

func TestFieldsOfKubernetesAreNotForOneMachine(t *testing.T) {
	supported := Supported(reflect.TypeFor[WangellServiceSpec]())
	for _, f := range specFields {
		_, explained := noNeed[f.name]
		cluster := f.uses&onKubernetes != 0
		if explained != cluster || slices.Contains(supported, f.name) == cluster {
			t.Errorf("%s: only on Kubernetes: %t; explained in noNeed: %t", f.name, cluster, explained)
		}
	}
}

func TestSchemaTextNamesEachField(t *testing.T) {
	inTemplate, names := SchemaText("$hasInTemplate"), SchemaText("$namesInTemplate")
	ofRevisions := SchemaText("$hasOfRevisions")
	for _, f := range hashedFields {
		has := "has(self." + f.name + ")"
		beside := !slices.Contains([]string{"", "targetPort", "ports"}, f.name)
		if strings.Contains(ofRevisions, has) != beside {
			t.Errorf("the rule about traffic names %s: %t", f.name, !beside)
		}
		besideTemplate := !slices.Contains([]string{"", "targetPort", "ports", "image", "template"}, f.name)
		if strings.Contains(inTemplate, has) != besideTemplate || besideTemplate && !strings.Contains(names, f.name) {
			t.Errorf("the rule about template names %s: %t", f.name, !besideTemplate)
		}
	}
	const plain = "has(self.image) || self.matches('^a$')"
	if got := SchemaText(plain); got != plain {
		t.Errorf("got %s, want %s", got, plain)
	}
}
